"""The rules of each runtime, checked on the files that are written for it.

These checkers are written from the runtimes' documentation and argument checks alone, apart from the writers: they
parse the files by themselves, and raise AssertionError with the rule that is broken.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from alpa_dejavu.problem import Plan

__all__ = ["RULES"]

Files = Mapping[str, str | bytes]


def _text(files: Files, name: str) -> str:
    content = files[name]
    return content if isinstance(content, str) else content.decode()


def _megatron(files: Files, plan: Plan) -> None:
    """Megatron-LM's `validate_args` and the checks of `PipelineParallelLayerLayout`."""
    text = re.sub(r"^#.*$", "", _text(files, "run_megatron.sh"), flags=re.MULTILINE)
    given: dict[str, str] = {}
    for name, value in re.findall(r"--([\w-]+)(?:[ ]+('[^']*'|\"[^\"]*\"|[^\s-][^\s]*))?", text):
        assert name not in given, f"--{name} is there twice"
        given[name] = value.strip("'\"")
    world = int(given["nnodes"]) * int(given["nproc_per_node"])
    along, pipe = int(given["tensor-model-parallel-size"]), int(given["pipeline-model-parallel-size"])
    context, experts = int(given.get("context-parallel-size", 1)), int(given.get("expert-model-parallel-size", 1))
    assert world % (along * pipe * context) == 0, "world size is not divisible by tensor, pipeline and context sizes"
    across = world // (along * pipe * context)
    each_expert = int(given.get("expert-tensor-parallel-size", along))
    assert world % (each_expert * experts * pipe) == 0, "world size is not divisible by expert and pipeline sizes"
    assert int(given["seq-length"]) % (2 * context if context > 1 else 1) == 0, "tokens are cut into 2 parts a device"
    assert experts == 1 or int(given["num-experts"]) % experts == 0, "experts are divided equally"
    instances = int(given.get("num-distributed-optimizer-instances", 1))
    assert across * context % instances == 0, "instances divide the data parallel devices with context parallel ones"
    assert instances == 1 or "use-distributed-optimizer" in given, "instances are of the distributed optimizer"
    micro, batch = int(given["micro-batch-size"]), int(given["global-batch-size"])
    assert batch % (micro * across) == 0, "global batch is not divisible by micro batch times data parallel size"
    heads, groups = int(given["num-attention-heads"]), int(given.get("num-query-groups", given["num-attention-heads"]))
    assert heads % along == 0, "num-attention-heads must be a multiple of the tensor parallel size"
    assert groups % along == 0 or along % groups == 0, "query groups and tensor parallel size must divide each other"
    layers = int(given["num-layers"])
    if "pipeline-model-parallel-layout" in given:
        _layout(given["pipeline-model-parallel-layout"], layers, pipe, batch // micro // across)
    else:
        assert layers % pipe == 0, "layers must be divisible by the pipeline parallel size"
    if "overlap-param-gather" in given:
        assert "use-distributed-optimizer" in given, "param gather overlaps with the distributed optimizer alone"
        assert "overlap-grad-reduce" in given, "param gather overlaps where gradients do"
    if "optimizer-cpu-offload" in given:
        assert "use-precision-aware-optimizer" in given, "offload wants the precision-aware optimizer"
        assert 0 < float(given["optimizer-offload-fraction"]) <= 1, "the fraction is from 0 to 1"
    if given.get("recompute-granularity") == "full":
        assert given["recompute-method"] in ("uniform", "block"), "full recomputing wants a method"
        assert int(given["recompute-num-layers"]) >= 1, "full recomputing wants a number of layers"
    if "use-megatron-fsdp" in given:
        assert given["ckpt-format"] == "fsdp_dtensor", "Megatron-FSDP wants fsdp_dtensor checkpoints"
    if "num-experts" in given and along > 1:
        assert "sequence-parallel" in given, "experts with tensor parallelism want sequence parallelism"


def _layout(layout: str, layers: int, pipe: int, micro_batches: int) -> None:
    plain = layout.replace(",", "")
    while (group := re.search(r"\(([^)]*)\)\*(\d+)", plain)) is not None:
        plain = plain.replace(group[0], group[1] * int(group[2]), 1)
    while (one := re.search(r"(.)\*(\d+)", plain)) is not None:
        plain = plain.replace(one[0], one[1] * int(one[2]), 1)
    stages = plain.split("|")
    assert set(plain) <= set("EtmL|"), "unknown letters in the layout"
    assert len(stages) % pipe == 0, "stages must be a multiple of the pipeline parallel size"
    assert plain[0] == "E", "the first layer must be the embedding"
    assert plain[-1] == "L", "the last layer must be the loss"
    assert (plain.count("E"), plain.count("L"), plain.count("t")) == (1, 1, layers), "layers must add up, one E, one L"
    assert all(stages), "a stage is empty"
    if len(stages) > pipe:
        assert micro_batches % pipe == 0, "interleaving wants whole rounds of micro-batches"


def _torchtitan(files: Files, plan: Plan) -> None:
    """`ParallelismConfig`, `ParallelDims` and `_build_pipeline_schedule`."""
    tree = ast.parse(_text(files, "torchtitan_plan.py"))
    fields: dict[str, Any] = {}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        assert isinstance(call.func, ast.Name)
        if call.func.id in ("ParallelismConfig", "TrainingConfig"):
            fields |= {each.arg or "": _literal(each.value) for each in call.keywords}
    degrees = [
        fields[f"{name}_degree"]
        for name in ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "pipeline_parallel")
    ]
    context, experts = fields["context_parallel_degree"], fields["expert_parallel_degree"]
    assert degrees[1] * degrees[2] * context % experts == 0, "experts borrow devices of shard, context and tensor"
    world = degrees[0] * degrees[1] * degrees[2] * degrees[3] * context
    assert world == plan.num_devices, "the degrees' product must be the world size"
    replicas, pipe = degrees[0] * degrees[1], degrees[3]
    local, batch = fields["local_batch_size"], fields["global_batch_size"]
    assert batch % (local * replicas) == 0, "the global batch must be a multiple of the local one on all replicas"
    assert fields["fsdp_reshard_after_forward"] in ("default", "always", "never")
    assert fields["disable_cuda_graphs"] or (pipe, experts) == (1, 1), "graphs go without pipelines and experts"
    if pipe == 1:
        return
    assert local * replicas == batch, "a pipeline takes the whole batch at once"
    assert local % fields["pipeline_parallel_microbatch_size"] == 0, "micro-batches must divide the local batch"
    count = local // fields["pipeline_parallel_microbatch_size"]
    parts = fields["module_fqns_per_model_part"]
    assert len(parts) % pipe == 0, "model parts must be a multiple of the ranks"
    names = [name for part in parts for name in part]
    blocks = [name for name in names if name.startswith("layers.")]
    assert names == ["tok_embeddings", *(f"layers.{n}" for n in range(len(blocks))), "norm", "lm_head"]
    single = fields["pipeline_parallel_schedule"] in ("1F1B", "GPipe")
    loaded = fields.get("pipeline_parallel_schedule_csv") is not None
    assert single == (len(parts) == pipe) or loaded, "one stage a rank is for single schedules, several for the others"
    if fields["pipeline_parallel_schedule"] in ("ZBVZeroBubble", "DualPipeV"):
        assert len(parts) == 2 * pipe, "V-shaped schedules have two stages a rank"
    if fields["pipeline_parallel_schedule"] == "Interleaved1F1B":
        assert count % max(count // pipe, 1) == 0, "micro-batches must be whole rounds"
    _schedule(_text(files, "schedule.csv"), len(parts), pipe, count)


def _schedule(text: str, stages: int, ranks: int, micro_batches: int) -> None:
    """PyTorch's `_validate_schedule`: each stage's passes once for each micro-batch, on one rank, in an order."""
    rows = [line.split(",") for line in text.splitlines()]
    assert len(rows) == ranks, "a row for each rank"
    owner: dict[int, int] = {}
    seen: set[tuple[int, str, int]] = set()
    for rank, row in enumerate(rows):
        for cell in row:
            found = re.fullmatch(r"(\d+)([FBIW])(\d+)", cell)
            assert found is not None, f"{cell!r} is no action"
            stage, kind, part = int(found[1]), found[2], int(found[3])
            assert owner.setdefault(stage, rank) == rank, f"stage {stage} is on two ranks"
            assert (stage, kind, part) not in seen, f"{cell} is there twice"
            if kind in "BI":
                assert (stage, "F", part) in seen, f"{cell} is before its forward"
            if kind == "W":
                assert (stage, "I", part) in seen, f"{cell} is before its backward by inputs"
            seen.add((stage, kind, part))
    for stage in range(stages):
        for part in range(micro_batches):
            assert (stage, "F", part) in seen, f"stage {stage} has no forward of {part}"
            parts = {(stage, "I", part), (stage, "W", part)}
            assert (stage, "B", part) in seen or parts <= seen, f"stage {stage} has no backward of {part}"
    assert max(owner) + 1 == stages


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _deepspeed(files: Files, plan: Plan) -> None:
    """`DeepSpeedConfig`'s batch assertion, `PipelineEngine` and `DeepSpeedZeroConfig`."""
    data = json.loads(_text(files, "deepspeed_config.json"))
    stages, parts = data["pipeline"]["stages"], data["pipeline"]["parts"]
    world = plan.num_devices
    assert world % stages == 0
    micro, times = data["train_micro_batch_size_per_gpu"], data["gradient_accumulation_steps"]
    world //= data.get("sequence_parallel_size", 1)
    assert data["train_batch_size"] == micro * times * (world // stages), "batch is micro batch x steps x replicas"
    zero = data["zero_optimization"]
    assert "mics_shard_size" not in zero or zero["stage"] == 3, "MiCS is for ZeRO 3"
    assert zero["stage"] in (0, 1, 2, 3)
    if stages > 1:
        assert zero["stage"] < 2, "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"
    if "offload_param" in zero:
        assert zero["stage"] == 3, "parameters are offloaded under ZeRO-3 alone"
    if "offload_optimizer" in zero:
        assert zero["stage"] >= 1, "the optimizer's state is offloaded under ZeRO alone"
        assert zero["offload_optimizer"].get("ratio", 1) == 1 or zero["stage"] == 3, "a ratio is for ZeRO-3"
    assert parts[0] == 0
    assert len(parts) == stages + 1
    assert all(b > a for a, b in itertools.pairwise(parts)), "each stage has a layer"
    assert parts[-1] == plan.num_layers
    code = ast.parse(_text(files, "deepspeed_plan.py"))
    made = [node for node in ast.walk(code) if isinstance(node, ast.ClassDef)]
    methods = {node.name for one in made for node in one.body if isinstance(node, ast.FunctionDef)}
    assert "_partition_layers" in methods, "the pipeline module cuts layers by itself"


def _galvatron(files: Files, plan: Plan) -> None:
    """`get_hybrid_parallel_configs_api` and `check_hp_config`, with the choices of its arguments."""
    data = json.loads(_text(files, "galvatron_config.json"))
    names = ("tp_sizes_enc", "tp_consecutive_flags", "dp_types_enc", "use_sp", "checkpoint", "pp_division")
    degrees = [key for key in ("cp_sizes_enc", "ep_sizes_enc", "tp_of_ep_sizes_enc") if key in data]
    lists = {key: list(map(int, data[key].split(","))) for key in (*names, *degrees)}
    layers, pipe, world = len(lists["tp_sizes_enc"]), data["pp_deg"], plan.num_devices
    assert pipe in (2**n for n in range(10)), "pp_deg must be a power of two"
    assert all(len(values) == layers for key, values in lists.items() if key != "pp_division")
    assert (len(lists["pp_division"]), sum(lists["pp_division"])) == (pipe, layers), "pp_division must add up"
    assert min(lists["pp_division"]) > 0, "each stage has a block"
    context = lists.get("cp_sizes_enc", [1])[0]
    for along in (context * along for along in (*lists["tp_sizes_enc"], data["vtp"])):
        assert 1 <= along <= world // pipe, "tensor parallel devices are in a stage"
        assert (world // pipe) % along == 0
    assert data["global_bsz"] % (world // pipe // context // min(*lists["tp_sizes_enc"], data["vtp"])) == 0
    assert data["global_bsz"] % data["chunks"] == 0
    assert set(lists["dp_types_enc"]) <= {0, 1}
    assert set(lists["checkpoint"]) <= {0, 1}
    assert data["pipeline_type"] in ("gpipe", "pipedream_flush")
    assert data["default_dp_type"] in ("ddp", "zero2", "zero3")


def _maxtext(files: Files, plan: Plan) -> None:
    """The checks of MaxText's configuration on pipelines, axes and batches."""
    data = yaml.safe_load(_text(files, "maxtext_plan.yml"))
    axes = ("data", "fsdp", "context", "expert", "tensor", "pipeline")
    sizes = {name: data[f"ici_{name}_parallelism"] * data[f"dcn_{name}_parallelism"] for name in axes}
    world, inside = 1, 1
    for name in axes:
        world, inside = world * sizes[name], inside * data[f"ici_{name}_parallelism"]
    assert world == plan.num_devices, "the axes' product must be the number of devices"
    assert inside <= max(stage.submesh.devices_per_host for stage in plan.stages) * len(plan.stages)
    batch = data["per_device_batch_size"] * world * data.get("gradient_accumulation_steps", 1)
    assert batch == plan.batch, "per_device_batch_size times devices is the batch"
    if sizes["pipeline"] > 1:
        layers = sizes["pipeline"] * data["num_layers_per_pipeline_stage"] * data["num_pipeline_repeats"]
        assert layers == data["base_num_decoder_layers"], "stages x layers x repeats must be all layers"
        assert data["num_pipeline_microbatches"] % sizes["pipeline"] == 0, "micro-batches must be whole rounds"
        assert batch % data["num_pipeline_microbatches"] == 0
    assert data["remat_policy"] in ("full", "none")
    assert data["base_num_query_heads"] % data["base_num_kv_heads"] == 0


def _alpa(files: Files, plan: Plan) -> None:
    """The lines are Python that names as many stages as the plan has."""
    ast.parse(_text(files, "alpa_plan.py"))


RULES: dict[str, Callable[[Files, Plan], None]] = {
    "alpa": _alpa, "megatron": _megatron, "torchtitan": _torchtitan, "deepspeed": _deepspeed, "galvatron": _galvatron,
    "maxtext": _maxtext,
}  # fmt: skip
"""By the names of targets."""
