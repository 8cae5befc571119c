"""Published training steps as jobs of the planner: the model, the cluster, the division and the runtime of each row."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, final

from alpa_dejavu.clusters.gpus import Gpu, gpu_of, known_gpus
from alpa_dejavu.costs.runtime import RuntimeProfile, runtime_profile
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import Cluster, Link, MeshConfig, Run
from alpa_dejavu.sharding.transformers import EXECUTIONS, Execution

__all__ = ["Job", "gpu_named", "measured_job", "published_job"]

Row = Mapping[str, Any]
_HOST = 8
_WITHIN_S, _BETWEEN_S = 1e-5, 3e-5
_NETWORK = {"ampere": 200e9 / 8, "hopper": 400e9 / 8, "blackwell": 400e9 / 8}
"""Bytes per second of a GPU's network card in the makers' own systems, where a row doesn't say another rate."""
_DEEPSEEK = {
    "query_rank": 1536, "latent_rank": 512, "rotary_size": 64, "value_size": 128, "head_size": 128,
}  # fmt: skip
"""The latent attention of DeepSeek-V2 and V3, whose published rows don't have it."""
_DEEPSEEK_BLOCKS = {61: (3, 18432, 2048), 60: (1, 12288, 3072)}
"""By the number of blocks: those without experts, their width, and the width of shared experts."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """A training step that was measured.

    Attributes:
        config: how the devices of a stage divide it; by blocks that are computed again there may be several.
        configs: the choices of rematerialisation that are mixed in equal parts; usually one.
        pipeline, batch: the pipeline's degree, and the samples of a step.
        measured_bytes: the largest allocation on a device; None: it wasn't measured.
        reduced_bytes: of a gradient while devices add it up; None: as the framework has it. fms-fsdp's own setting is
            half precision.
        context: how devices that share tokens exchange keys and values; empty: as the framework does it.
    """

    name: str
    source: str
    gpu: Gpu
    size: Transformer
    cluster: Cluster
    configs: tuple[MeshConfig, ...]
    run: Run
    pipeline: int
    batch: int
    runtime: RuntimeProfile
    measured_s: float
    measured_bytes: float | None = None
    reduced_bytes: float | None = None
    context: str = ""

    @property
    def execution(self) -> Execution:
        """How the framework runs the model."""
        usual = EXECUTIONS[self.runtime.name.partition("+")[0]]
        reduced_bytes = usual.reduced_bytes if self.reduced_bytes is None else self.reduced_bytes
        return dataclasses.replace(usual, reduced_bytes=reduced_bytes, context=self.context or usual.context)

    @property
    def model_flop(self) -> float:
        """Operations of a step by the usual rule: six for each parameter of products and token, and attention's."""
        size = self.size
        routed = size.num_experts - size.experts_per_token
        unused = (size.num_blocks - size.dense_blocks) * routed * (2 + size.gated) * size.hidden * size.feed_forward
        table = size.hidden * size.vocabulary * (0 if size.tied else 1)
        parameters = size.num_parameters - (unused if size.num_experts else 0) - table
        attention = 6 * size.num_blocks * size.num_heads * size.head_size * size.sequence
        return self.batch * size.sequence * (6 * parameters + attention)


def gpu_named(text: str) -> Gpu:
    """The data sheet of the GPU that a row's hardware stands for, such as "H100-80GB" or "a100_sxm".

    Raises:
        ValueError: it isn't known.
    """
    words = text.upper().replace("_", "-")
    wanted = re.match(r"(GB300|GB200|B300|B200|GH200|H200|H100|A100|L40S|L4|V100|T4)", words)
    names = (
        []
        if wanted is None
        else [name for name in known_gpus() if name.startswith(f"{wanted[1]}-") or name == wanted[1]]
    )
    if not names:
        raise ValueError(
            f"hardware is {text!r}, but must be a GPU whose data sheet is known: {', '.join(known_gpus())}"
        )
    memory = re.search(r"(\d+)GB", words.removeprefix(wanted[1] if wanted else ""))

    def fits(name: str) -> tuple[bool, ...]:
        return (
            ("PCIE" in name) == ("PCIE" in words), "500W" not in name or "500W" in words,
            memory is not None and memory[0] in name, "500W" in words and "500W" in name, "80GB" in name,
        )  # fmt: skip

    gpu = gpu_of(max(names, key=fits))
    assert gpu is not None, "the name is a known one"
    return gpu


def published_job(row: Row) -> Job:
    """A row with the columns of published-training/steps.csv."""
    gpu, gpus = gpu_named(str(row["hardware"])), _needed(row, "gpus")
    notes, dp_zero = _text(row, "notes"), _text(row, "dp_zero")
    size = _size(row)
    tensor, pipeline, context, expert = (_count(row, name) for name in ("tp", "pp", "cp", "ep"))
    data = max(gpus // tensor // pipeline, 1)
    batch, sharded = _needed(row, "gbs"), 0
    zero = 3 if re.search("FSDP|HSDP|ZeRO-3", dp_zero) else 2 if re.search("distributed|ZeRO", dp_zero) else 0
    if zero == 3 and pipeline > 1:
        zero = 2  # as torchtitan has it: parameters stay whole between the micro-batches of a pipeline
    if "HSDP" in dp_zero and data > _HOST // tensor:
        sharded = max(_HOST // tensor, 1)
    replicas = data // context
    micro_batches = max(round(batch / replicas / _count(row, "mbs")), 1)
    chunks = _count(row, "vp")
    schedule = "1f1b" if chunks == 1 or pipeline == 1 else "interleaved" if chunks == 2 else f"interleaved_{chunks}"
    if size.num_blocks < pipeline * chunks:
        schedule = "1f1b"
    shape = (data, tensor)
    configs = tuple(
        MeshConfig(
            shape, data, tensor, _FORCED, remat, zero, context_parallel=context, expert_parallel=expert, sharded=sharded
        )
        for remat in _remat(_text(row, "recompute"), gpu)
    )
    name = f"{row['id']} {row['model']} {row['seq']} on {gpus} {gpu.name} {row['precision']}"
    return Job(
        name, _text(row, "source"), gpu, size, _cluster(gpu, gpus, pipeline, _text(row, "interconnect")), configs,
        Run(micro_batches, schedule), pipeline, batch, _runtime(_text(row, "source"), dp_zero, notes),
        _step_s(row), reduced_bytes=2.0 if "fms-fsdp" in _text(row, "source") else None,
    )  # fmt: skip


def measured_job(row: Row) -> Job:
    """A row with the columns of megatron-b200/steps.csv: nothing overlaps, attention's tokens go by all-to-all."""
    gpu, gpus = gpu_named(str(row.get("gpu", "B200"))), _count(row, "gpus")
    tensor, pipeline, context, expert = (_count(row, name) for name in ("tp", "pp", "cp", "ep"))
    data = gpus // tensor // pipeline
    experts = int(row["experts"])
    latent = int(row["kv_lora_rank"]) > 0
    size = Transformer(
        int(row["hidden"]), int(row["layers"]), int(row["heads"]), int(row["vocab"]), int(row["seq"]),
        kv_heads=int(row["heads"] if latent else row["kv_heads"]), head_size=int(row["head_dim"]),
        feed_forward=int(row["expert_ffn"] if experts else row["ffn"]), num_experts=experts,
        experts_per_token=int(row["topk"]), shared_feed_forward=int(row["shared_ffn"]),
        dense_blocks=int(row["dense_layers"]) if experts else 0,
        dense_feed_forward=int(row["ffn"]) if experts and int(row["dense_layers"]) else 0,
        query_rank=int(row["q_lora_rank"]), latent_rank=int(row["kv_lora_rank"]), rotary_size=int(row["rope_head_dim"]),
        value_size=int(row["v_head_dim"]) if latent else 0,
    )  # fmt: skip
    config = MeshConfig(
        (data, tensor), data, tensor, _FORCED, "none", 2, context_parallel=context, expert_parallel=expert
    )
    batch, micro_batch = int(row["gbs"]), int(row["mbs"])
    name = f"{row['model']} {row['seq']} tp {tensor} pp {pipeline} cp {context} ep {expert} batch {batch}"
    return Job(
        name, "megatron-b200", gpu, size, _cluster(gpu, gpus, pipeline, ""), (config,),
        Run(max(batch // (data // context) // micro_batch, 1)), pipeline, batch, runtime_profile("megatron", "none"),
        _step_s(row), float(row["peak_gib"]) * 2**30, context="all_to_all",
    )  # fmt: skip


_FORCED = {"force_batch_dim_to_mesh_dim": 0}


def _size(row: Row) -> Transformer:
    experts, latent = _number(row, "experts"), dict[str, Any]()
    blocks = _needed(row, "layers")
    dense: dict[str, Any] = {}
    if experts and "deepseek" in _text(row, "model").lower():
        latent = _DEEPSEEK
        if blocks in _DEEPSEEK_BLOCKS:
            count, width, shared = _DEEPSEEK_BLOCKS[blocks]
            dense = {"dense_blocks": count, "dense_feed_forward": width, "shared_feed_forward": shared}
    return Transformer(
        *(_needed(row, "hidden"), blocks, _needed(row, "heads"), _needed(row, "vocab"), _needed(row, "seq")),
        kv_heads=_count(row, "heads") if latent else _number(row, "kv_heads") or _count(row, "heads"),
        feed_forward=_number(row, "ffn"), gated=bool(_number(row, "gated")), rotary=bool(_number(row, "rope")),
        rms_norm=bool(_number(row, "rms")), tied=bool(_number(row, "tied")), num_experts=experts,
        experts_per_token=_number(row, "topk") if experts else 0,
        precision=_PRECISION.get(_text(row, "precision").upper().partition(" ")[0], "bfloat16"),
        **({"head_size": _number(row, "head_dim")} | latent | dense),
    )  # fmt: skip


_PRECISION = {
    "FP8": "float8",
    "MXFP8": "mxfp8",
    "FP16": "float16",
    "BF16": "bfloat16",
    "NVFP4": "nvfp4",
    "FP4": "nvfp4",
}


def _remat(text: str, gpu: Gpu) -> tuple[str, ...]:
    """The choices that are mixed: of "partial" rows half of the blocks are taken to be computed again."""
    if gpu.name.startswith("H100") and "partial on H100" in text:
        return "none", "layer"
    if text.startswith("full"):
        return ("layer",)
    if text.startswith("partial"):
        return "none", "layer"
    return ("selective",) if text.startswith("selective") else ("none",)


def _runtime(source: str, dp_zero: str, notes: str) -> RuntimeProfile:
    """The framework that a source ran, by what it and its notes say."""
    text = f"{source} {notes}".lower()
    if "maxtext" in text:
        name = "maxtext"
    elif "deepspeed" in text:
        name = "deepspeed"
    elif "FSDP" in dp_zero or "HSDP" in dp_zero:
        compiled = "torchtitan" in text or "compile" in text
        name = "torchtitan" if compiled and "eager" not in text else "fsdp"
    elif re.search("nemo|nvidia|dgxc", text):
        name = "nemo"
    else:
        name = "megatron"
    return runtime_profile(name, "tensor" if "tp overlap" in text else None)


def _cluster(gpu: Gpu, gpus: int, pipeline: int, interconnect: str) -> Cluster:
    """Equal hosts with as many GPUs as NVLink joins, or fewer where stages wouldn't fill them."""
    domain, stage = 72 if gpu.name.startswith("GB") else _HOST, max(gpus // pipeline, 1)
    whole = [n for n in range(min(domain, gpus), 0, -1) if gpus % n == 0]
    each = next((n for n in whole if stage % n == 0 or n % stage == 0), whole[-1])
    rate = _NETWORK.get(gpu.generation, _NETWORK["hopper"]) * each
    said = re.search(r"(\d+) ?Gbit/s a (node|GPU)", interconnect)
    if said is not None:
        rate = float(said[1]) * 1e9 / 8 * (each if said[2] == "GPU" else 1)
    hosts = [f"host-{n}" for n in range(math.ceil(gpus / each))]
    within = Link(_WITHIN_S, gpu.link_bytes_per_s)
    return Cluster.uniform(f"{gpus} {gpu.name}", hosts, gpu.device(), each, within, Link(_BETWEEN_S, rate))


def _text(row: Row, name: str) -> str:
    value = row.get(name, "")
    return "" if value is None or value != value else str(value)


def _number(row: Row, name: str) -> int:
    text = _text(row, name)
    return int(float(text)) if text else 0


def _needed(row: Row, name: str) -> int:
    """A number that a row must have; KeyError where there is no such column."""
    found = _number({name: row[name]}, name)
    if found < 1:
        raise ValueError(f"{name} is {row[name]!r}, but must be a number of at least 1")
    return found


def _step_s(row: Row) -> float:
    try:
        found = float(row["step_s"])
    except ValueError:
        found = 0.0
    if not found > 0:
        raise ValueError(f"step_s is {row['step_s']!r}, but must be the seconds of a step")
    return found


def _count(row: Row, name: str) -> int:
    """A number that is 1 where the row leaves it out."""
    return max(_number(row, name), 1)
