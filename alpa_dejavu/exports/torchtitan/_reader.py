"""A plan from torchtitan's configuration."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from alpa_dejavu._util import units
from alpa_dejavu._util.json_file import read_text
from alpa_dejavu.exports._model_names import named_sizes
from alpa_dejavu.exports._outline import degrees_of
from alpa_dejavu.exports._settings import Configuration, cluster_of, differing, given_otherwise
from alpa_dejavu.exports._target import Foreign
from alpa_dejavu.exports.torchtitan._settings import read_settings
from alpa_dejavu.exports.torchtitan._writer import CONVERTERS, NAMES, module_names
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.problem import NO_OFFLOAD, Offload
from alpa_dejavu.schedules import named_schedule
from alpa_dejavu.schedules.schedule_file import schedule_text
from alpa_dejavu.sharding.transformers import execution

_KERNELS = re.compile(r"_(flex|varlen)(_attn)?$")
"""How names of flavors end that differ in the kernel of attention alone."""
_SECTIONS: Final = ("", "quantize.linear.", "quantize.dense.")
"""What is in front of a converter's name, and of its settings."""
_CONVERTERS: Final = {
    f"{prefix}{word}": precision for prefix in _SECTIONS for precision, (_, word, *_) in CONVERTERS.items()
}
"""The precisions that converters of linear layers make of bfloat16."""
_GROUPED: Final = {"quantize.dense": "quantize.moe"}
"""How converters of experts are named where those of linear layers are; others: "quantize.grouped_mm"."""
_PRODUCTS: Final = (
    *(f"attention.{name}" for name in ("wq", "wk", "wv", "wo", "wq_a", "wq_b", "wkv_a", "wkv_b")),
    *(f"{layer}.w{n}" for layer in ("feed_forward", "moe.shared_experts") for n in (1, 2, 3)),
)  # fmt: skip
"""How the linear layers of a block are named."""
_BY_SIZE: Final = "auto_filter_small_kn"
"""A filter that leaves out what is too small to gain."""
_LOADED = ("zb_h1", "v_half", "v_min")
"""Schedules that the CSV alone has."""
_SPLIT = re.compile(r"layers\.(\d{1,6})")
_EAGER_LOGIT_BYTES = 14.0
"""Of each logit: in half precision, and thrice in single precision (itself, its logarithm, its gradient), where nothing
is fused."""
_OPTION, _EVERY_SECOND = "activation_checkpoint.selective_ac_option", "2"
"""What selective remat computes again, and torchtitan's own choice of it in TOML: every second block."""
_DIVISION = "parallelism."
_ROTATES = f"{_DIVISION}context_parallel_rotate_method"
_ASYNC = (f"{_DIVISION}enable_async_tensor_parallel", "compile.enable_async_tensor_parallel")
_GEMMS, _FURTHER = "model.tp_gemm_backend", "model.num_mtp_layers"
_EXCHANGES = (f"{_DIVISION}expert_parallel_comm_backend", "model.moe_comm_backend")
_ROUNDS: Final = f"{_DIVISION}pipeline_parallel_microbatches"
_HIDES: Final = f"{_DIVISION}pipeline_parallel_expert_parallel_overlap"
_EACH_EXPERT = f"{_DIVISION}expert_tensor_parallel_degree"
_DEGREES: Final = {
    "context_parallel": f"{_DIVISION}context_parallel_degree",
    "expert_parallel": f"{_DIVISION}expert_parallel_degree", "expert_tensor": _EACH_EXPERT,
}  # fmt: skip


def read_torchtitan(
    path: pathlib.Path, num_devices: int, model: Transformer | None = None, config: str = ""
) -> Foreign:
    """Returns the plan that a configuration says, whose precision, and sequence if it has one, a given model gets.

    `config` is the name of the function in Python that returns it, where there are several.
    """
    settings = read_settings(path, config)
    settings.one_of("optimizer.name", ("Adam", "AdamW"), "AdamW")
    sizes = _sizes(settings, model, path)
    outline = _outline(settings, num_devices, sizes.num_blocks, path)
    otherwise = tuple(_otherwise(settings, outline, sizes.precision))
    divided = outline.tensor_parallel == 1 or settings.flag(f"{_DIVISION}enable_sequence_parallel", True)
    parts = settings.get("compile.components", ["model", "loss"])
    compiled = settings.flag("compile.enable") or settings.flag("training.compile")
    if compiled and parts not in (["model", "loss"], ["loss", "model"], ["model"], ["loss"]):
        raise settings.must_be("compile.components", '["model", "loss"], or one of them')
    runtime = "torchtitan" if compiled and "model" in parts else "fsdp"
    if not compiled or "loss" not in parts:
        logits = outline.micro_batch * sizes.sequence * sizes.vocabulary / outline.tensor_parallel
        more = units.size((_EAGER_LOGIT_BYTES - execution(runtime).logit_bytes) * logits)
        why = "compile.components has no loss" if compiled else "compile.enable isn't true"
        otherwise += (
            f"{why}, so it is priced as the runtime {runtime}, whose loss is fused: one that isn't takes up to {more} "
            "more on each device of the last stage",
        )
    priced_by = {"runtime": runtime} if runtime == "fsdp" else {}
    by = "adamw" if "optimizer.name" in settings else ""
    return Foreign(outline, sizes, settings.ignored, priced_by, otherwise, divided, by)


def _otherwise(config: Configuration, outline: Outline, precision: str) -> Iterator[str]:
    """Yields what of a configuration is priced otherwise."""
    waits = [name for name in _ASYNC if config.flag(name)]
    waits += [_GEMMS] if config.one_of(_GEMMS, ("default", "dist_gemm"), "default") != "default" else []
    if waits and outline.tensor_parallel > 1:
        yield f"{waits[0]} is priced as if products waited for what tensor-parallel devices exchange"
    rotates = config.one_of(_ROTATES, ("allgather", "alltoall"), "allgather")
    if outline.context_parallel > 1 and rotates == "alltoall":
        yield f"{_ROTATES} alltoall is priced as allgather, which sends as much, and less hidden"
    for name in _EXCHANGES:
        exchange = config.one_of(name, ("standard", "deepep", "hybridep", "minimal_async_ep"), "standard")
        if outline.expert_parallel > 1 and exchange != "standard":
            yield f"{name} {exchange} is priced as standard, whose all-to-alls take longer"
    for key, filters in _filters(config, precision):
        if _BY_SIZE in filters:
            yield f"{key} {_BY_SIZE} is priced as if no product of the blocks was too small for 8 bits"
    if str(config.get("model.attn_backend")) in ("flex", "varlen"):
        yield f"model.attn_backend {config.get('model.attn_backend')} is priced as a fused kernel of sdpa's"
    if str(config.get("loss")).startswith("ChunkedLossWrapper"):
        yield "loss ChunkedLossWrapper is priced as if all logits of a micro-batch were there at once"
    hides = config.flag(_HIDES, True) and outline.schedule == "dualpipe_v"
    if hides and outline.expert_parallel > 1:
        yield f"{_HIDES} is priced as if all-to-alls weren't hidden behind another micro-batch"


def _sizes(config: Configuration, model: Transformer | None, path: pathlib.Path) -> Transformer:
    """Returns the model's sizes: those that are given, or those of the flavor."""
    precision = config.one_of("training.mixed_precision_param", ("bfloat16", "float32"), "bfloat16")
    sequence = config.number("training.seq_len", 2048)
    name, flavor = str(config.get("model.name", "")), str(config.get("model.flavor", ""))
    plain = _KERNELS.sub("", flavor)
    sizes = Transformer.of_text(plain) or named_sizes("torchtitan", f"{name} {plain}")
    if sizes is not None:
        default = 0 if model is None else model.predicted
        sizes = dataclasses.replace(sizes, predicted=config.number(_FURTHER, default, least=0))
        if model is not None and (other := differing(sizes, model)):
            raise config.wrong("model.flavor", given_otherwise(f"{name!r} has the sizes of {flavor!r}", other))
    if model is not None:
        sizes, sequence = model, sequence if "training.seq_len" in config else model.sequence
    elif not name:
        why = "model.name is missing, but must be there to know the sizes; add it and a flavor, or give --model"
        raise config.wrong("model", why)
    elif sizes is None:
        folder = path.suffix == ".py" and name == path.absolute().parent.name
        whence = ", which is the folder's name, as its own model_registry is imported," if folder else ""
        why = f"the sizes of {name!r}{whence} {flavor!r} aren't known; give --model, such as its config.json"
        raise config.wrong("model.flavor", why)
    return _narrowed(config, dataclasses.replace(sizes, sequence=sequence, precision=precision, gather=""))


def _narrowed(config: Configuration, model: Transformer) -> Transformer:
    """Returns a model with the products in 8 bits that converters make of half precision."""
    key = "model.converters"
    names = config.get(key) or []
    names = names or (["float8"] if config.flag("float8.enable_float8_linear") else [])
    names = [names] if isinstance(names, str) else [*map(str, names)] if isinstance(names, list) else ["?"]
    linear = [name for name in names if name in _CONVERTERS]
    parts = [name.rpartition(".") for name in linear]
    grouped = [f"{_GROUPED.get(outer, 'quantize.grouped_mm')}.{kind}" for outer, _, kind in parts]
    if len(linear) > 1 or not {*names} <= {*linear, *grouped}:
        raise config.must_be(key, f"one of {', '.join(_CONVERTERS)} to be planned")
    if not names:
        return model
    if model.precision != "bfloat16":
        why = f"{key} is beside {model.precision}, but must be beside bfloat16 to be planned; leave it out"
        raise config.wrong(key, why)
    if model.num_experts and len(names) < 2 and not config.get("float8.moe_fqns_prototype"):
        raise config.wrong(key, f"{key} leaves experts in half precision, which isn't planned; add {grouped[0]}")
    narrow, gather = _CONVERTERS[linear[0]], "enable_fsdp_float8_all_gather"
    gathers = narrow == "float8" and any(config.flag(f"{section}float8.{gather}") for section in _SECTIONS)
    for key, filters in _filters(config, narrow):
        products = [f"layers.{block}.{product}" for block in range(model.num_blocks) for product in _PRODUCTS]
        left = [part for part in filters if any(part in name for name in products)]
        if left:
            why = f"{key} has {', '.join(left)}, which leaves some of blocks' products in half precision"
            raise config.wrong(key, f"{why}, but must have none of these to be planned; leave them out")
    return dataclasses.replace(model, precision=narrow, gather="fp8" if gathers else "")


def _filters(config: Configuration, precision: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the settings that leave layers in half precision by parts of their names, with these."""
    for key in [f"{name}.filter_fqns" for name, narrow in _CONVERTERS.items() if narrow == precision]:
        filters = config.get(key, [])
        if not isinstance(filters, list) or not all(isinstance(part, str) for part in filters):
            raise config.must_be(key, "a list of names")
        yield key, filters


def _outline(config: Configuration, num_devices: int, num_blocks: int, path: pathlib.Path) -> Outline:
    """Returns the plan on so many devices of a model of so many blocks."""
    along = config.number(f"{_DIVISION}tensor_parallel_degree", 1)
    ranks = config.number(f"{_DIVISION}pipeline_parallel_degree", 1)
    context = config.number(_DEGREES["context_parallel"], 1)
    copies, shares = _replicas(config, num_devices, along * ranks * context)
    replicas, shared = copies * shares, shares * context
    local = config.number("training.batch_size", config.number("training.local_batch_size", 8))
    batch = config.number("training.global_batch_size", -1)
    batch = local * replicas if batch < 0 else batch
    blocks: tuple[int, ...] = (num_blocks,)
    schedule = "1f1b"
    if ranks == 1:
        count, rest = divmod(batch, local * replicas)
    else:
        blocks = _blocks(config, num_blocks, ranks)
        count, rest = divmod(local, config.number(f"{_DIVISION}pipeline_parallel_microbatch_size", 1))
        if _ROUNDS in config:
            count = config.number(_ROUNDS, 0, least=0) or len(blocks)
            rest = local % count
        if batch > local * replicas and not batch % (local * replicas):
            raise config.wrong(
                "training.global_batch_size", f"training.global_batch_size is {batch}, but must be {local * replicas}, "
                f"training.local_batch_size on {replicas} replicas: gradient accumulation beside a pipeline isn't "
                f"planned; make training.local_batch_size {batch // replicas} instead",
            )  # fmt: skip
        rest = rest or batch - local * replicas
        schedule = _schedule(config, len(blocks) // ranks, len(blocks), count, path)
    if rest or not count:
        whole = "a multiple of" if ranks == 1 else "cut into whole micro-batches, and be all of"
        raise config.wrong(
            "training.local_batch_size", f"training.global_batch_size is {batch}, but must be {whole} "
            f"{local * replicas}, training.local_batch_size on {replicas} replicas; mend one of them",
        )  # fmt: skip
    (mode, share), zero = _mode(config, blocks), 0
    if shared > 1:
        levels = {"default": 3 if ranks == 1 else 2, "always": 3, "never": 2}
        zero = levels[config.one_of(f"{_DIVISION}fsdp_reshard_after_forward", levels, "default")]
    offload = NO_OFFLOAD
    if config.flag("training.enable_cpu_offload"):
        offload = Offload(1.0, 1.0, 1.0)
    experts, across = config.number(_DEGREES["expert_parallel"], 1), copies * shared
    if shared * along % experts:
        whole = f"the {shared * along} devices that share parameters or operators"
        raise config.must_be(_DEGREES["expert_parallel"], f"a divisor of {whole}")
    # Experts that are divided among devices are divided among tensor-parallel ones, too, unless these share each.
    degrees = degrees_of(
        dataclasses.replace(config, values={_EACH_EXPERT: int(experts > 1), **config.values}),
        (across, along), _DEGREES, shared if copies > 1 and zero else 0,
    )  # fmt: skip
    return Outline(
        batch, count, schedule, across, along, blocks, (mode,) * len(blocks), zero, offload,
        **degrees if experts > 1 else {**degrees, "expert_tensor": 0}, remat_share=share,
    )  # fmt: skip


def _replicas(config: Configuration, num_devices: int, per_replica: int) -> tuple[int, int]:
    """How many copies of the parameters there are, and how many devices share each."""
    copying, sharing = (f"{_DIVISION}data_parallel_{how}_degree" for how in ("replicate", "shard"))
    copies, shares = config.number(copying, 1), config.number(sharing, -1)
    shares = num_devices // (per_replica * copies) if shares < 0 else shares
    if per_replica * copies * shares != num_devices or not shares:
        why = f"the degrees' product is {per_replica * copies * shares}, but must be {cluster_of(num_devices)}"
        raise config.wrong(sharing, why)
    return copies, shares


def _blocks(config: Configuration, num_blocks: int, ranks: int) -> tuple[int, ...]:
    """The blocks of each stage."""
    names = ("module_fqns_per_model_part", "pipeline_parallel_split_points", "pipeline_parallel_layers_per_stage")
    parts, splits, _ = (config.get(f"{_DIVISION}{name}") for name in names)
    if parts is not None:
        name, blocks = names[0], _blocks_of_parts(parts, num_blocks)
    elif splits:
        name, blocks = names[1], _blocks_of_splits(splits, num_blocks)
    else:
        name, blocks = names[2], _spread(config, num_blocks, ranks)
    if not blocks or len(blocks) % ranks:
        raise config.wrong(
            f"{_DIVISION}{name}", f"{name} must be stages of all {num_blocks} blocks in their order, a multiple of "
            f"{ranks}, with embeddings in the first one, and norm and head in the last; mend it",
        )  # fmt: skip
    return blocks


def _spread(config: Configuration, num_blocks: int, ranks: int) -> tuple[int, ...]:
    """The blocks of stages that torchtitan makes as equal as can be, where the ends count as blocks."""
    before, behind = (
        config.number(f"{_DIVISION}pipeline_parallel_{end}_stage_less_layers", 1, least=0) for end in ("first", "last")
    )
    whole = num_blocks + before + behind
    per_stage = config.number(f"{_DIVISION}pipeline_parallel_layers_per_stage", 0)
    single = str(config.get(f"{_DIVISION}pipeline_parallel_schedule", "1F1B")).lower() in ("1f1b", "gpipe")
    stages = -(-whole // per_stage) if per_stage else ranks * (1 if single else 2)
    if stages > whole:
        return ()
    equal, more = divmod(whole, stages)
    blocks = [equal + (n < more) for n in range(stages)]
    blocks[0] -= before
    blocks[-1] -= behind
    return tuple(blocks) if min(blocks) >= 0 else ()


def _schedule(config: Configuration, chunks: int, stages: int, count: int, path: pathlib.Path) -> str:
    key = f"{_DIVISION}pipeline_parallel_schedule"
    loaded = config.get(f"{key}_csv")
    if loaded:  # it is next to the configuration unless it says where
        text = read_text(path.parent / str(loaded), "it is the schedule that the configuration loads")
        for name in _LOADED if stages * count < len(text) else ():
            try:
                schedule = named_schedule(name, stages, count)
            except ValueError:
                continue
            if schedule_text(schedule) == text:
                return name
        raise config.wrong(
            f"{key}_csv", f"{loaded} is none of the schedules {', '.join(_LOADED)} of {stages} stages and {count} "
            "micro-batches; give one of these, or a schedule by its name",
        )  # fmt: skip
    names = {other: schedule for schedule, other in NAMES.items()}
    plain = str(config.get(key, "1F1B")).replace("_", "").lower()  # PyTorch doesn't mind how they are written
    name = next((name for name in names if name.lower() == plain), "")
    if not name:
        raise config.must_be(key, f"one of {', '.join(names)}", "1F1B")
    wanted = {"Interleaved1F1B": range(2, 10**6), "ZBVZeroBubble": (2,), "DualPipeV": (2,)}.get(name, (1,))
    if chunks not in wanted:
        why = f"{key} is {name}, which can't have {chunks} stages on each rank; change the stages or the schedule"
        raise config.wrong(key, why)
    return f"interleaved_{chunks}" if name == "Interleaved1F1B" and chunks > 2 else names[name]


def _mode(config: Configuration, blocks: Sequence[int]) -> tuple[str, float]:
    """Returns what is computed again, as a plan says it, and of which share of blocks: whole ones ("layer"), or what is
    cheap ("selective").
    """
    mode = config.one_of("activation_checkpoint.mode", ("none", "selective", "full"), "selective")
    option = str(config.get(_OPTION, _EVERY_SECOND))
    if mode != "selective":
        return "layer" if mode == "full" else mode, 1.0
    every = int(option) if option.isascii() and option.isdigit() and len(option) < 4 else 0
    if every and not any(number % every for number in blocks):  # of every so-manieth block
        return "layer", 1 / every
    if option != "op":
        raise config.must_be(
            _OPTION, f"'op', or divide the {min(blocks)} to {max(blocks)} blocks of each stage, to be planned, or "
            "another mode", _EVERY_SECOND,
        )  # fmt: skip
    return mode, 1.0


def _blocks_of_parts(parts: Any, num_blocks: int) -> tuple[int, ...]:
    """The blocks of each stage by the modules of its part; none where these aren't a whole model in its order."""
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        return ()
    blocks = tuple(sum(str(name).startswith("layers.") for name in part) for part in parts)
    heads = [["lm_head" if name == "output" else name for name in part] for part in parts]
    return blocks if sum(blocks) == num_blocks and heads == module_names(blocks) else ()


def _blocks_of_splits(splits: Any, num_blocks: int) -> tuple[int, ...]:
    names = splits.split(",") if isinstance(splits, str) else splits if isinstance(splits, list) else [""]
    matches = [_SPLIT.fullmatch(str(name).strip()) for name in names]
    ends = [0, *(int(match[1]) for match in matches if match is not None), num_blocks]
    blocks = tuple(b - a for a, b in itertools.pairwise(ends))
    return blocks if None not in matches and min(blocks[1:]) > 0 else ()
