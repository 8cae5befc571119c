"""A plan from Megatron's command line."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import Final

from alpa_dejavu._util.near_names import near
from alpa_dejavu.exports._command_line import (
    CommandLine,
    ShellArgument,
    check_processes,
    command_line_of,
    wrong_line,
)
from alpa_dejavu.exports._outline import degrees_of
from alpa_dejavu.exports._settings import Configuration, Setting, check_given, settings_of, short
from alpa_dejavu.exports._target import Foreign
from alpa_dejavu.exports.megatron._sizes import (
    precision_of,
    real_of,
    size_values,
    sizes_of_arguments,
    training_of,
    value_of,
)
from alpa_dejavu.exports.megatron._writer import DEGREE_ARGUMENTS, INSTANCES, LAYOUT, blocks_of_layout
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.problem import NO_OFFLOAD, Offload, blocks_again

_MOST_NAMES, _LONGEST = 10, 60
"""So many names does an error list, and so many characters of each."""
_SETTINGS: Final = settings_of("megatron")[""]
_TELLING: Final = (
    "num-layers", "hidden-size", "num-attention-heads", "seq-length", "micro-batch-size", "global-batch-size",
    "tensor-model-parallel-size", "pipeline-model-parallel-size", "model-parallel-size",
)  # fmt: skip
"""Arguments by which a command that trains is known."""
_OTHER_PROGRAMS: Final = re.compile(
    r"(?:^|[_\W])(?:bert|t5|ict|retro|retriever|vision|vlm|mamba|hybrid|llava|multimodal|biencoder|realm|generation|"
    r"server|inference|rl|classify|inpaint|dino|mimo|convert|preprocess)(?=[_\W])"
)
_FULLY_SHARDED: Final = {"use-megatron-fsdp", "use-custom-fsdp", "use-torch-fsdp2"}
_STRATEGY: Final = "data-parallel-sharding-strategy"
_LEVELS: Final = {"no_shard": 0, "optim": 2, "optim_grads": 2, "optim_grads_params": 3}
_ENDS: Final = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
_COUNTED: Final = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split")
_ROUND: Final = "microbatch-group-size-per-virtual-pipeline-stage"
_EXCHANGE: Final = "cp-comm-type"
_GROUPS: Final = "moe-router-group-topk"
_WIDE: Final = ("num-layers-at-start-in-bf16", "num-layers-at-end-in-bf16")
_GRAPHS, _PIECES, _DISPATCHER = "cuda-graph-impl", "tp-comm-overlap", "moe-token-dispatcher-type"
_LAUNCHED: Final = "as kernels that are launched one by one, without the memory of a graph's own"
_FUSED: Final = "as fused, which takes less time and memory"
_PRICED_AS: Final = {
    "enable-cuda-graph": _LAUNCHED, "external-cuda-graph": _LAUNCHED, "no-bias-gelu-fusion": _FUSED,
    "no-bias-swiglu-fusion": _FUSED, "no-bias-dropout-fusion": _FUSED, "moe-enable-deepep": "as NCCL's all-to-alls",
    "moe-shared-expert-overlap": "as if the shared expert waited for all-to-alls",
    "overlap-moe-expert-parallel-comm": "as if products waited for all-to-alls",
    "delay-wgrad-compute": "as if products of weights' gradients weren't put off",
    "no-overlap-p2p-communication": "as if sends between stages could hide", "no-persist-layer-norm": _FUSED,
    "reuse-grad-buf-for-mxfp8-param-ag": "with a buffer of its own for what is gathered",
    "fp4-param-gather": "as if weights were gathered in 16 bits",
}  # fmt: skip
"""How arguments are priced that runtimes' prices don't know."""
_DROPOUTS: Final = ("attention-dropout", "hidden-dropout")
_PLAIN: Final = ("unfused", "local")
"""Backends of attention that keep its scores."""
_VIRTUAL: Final = ("num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage")


def read_megatron(path: pathlib.Path, num_devices: int, model: Transformer | None = None) -> Foreign:
    """Returns the plan that a command line says. Of a model that is given the precision is the command line's."""
    line = command_line_of(path, _TELLING)
    config = _configuration(path, line)
    check_processes(path, line, num_devices)
    if model is not None:
        config = dataclasses.replace(config, values={**size_values(model), **config.values})
    return foreign_of(config, num_devices, model)


def foreign_of(config: Configuration, num_devices: int, model: Transformer | None = None) -> Foreign:
    """Returns the plan that Megatron's arguments say, wherever they are from. Of a model that is given how it is
    trained, and the tokens of a sample, are those of the arguments, which mustn't say other sizes than it has.
    """
    sizes = sizes_of_arguments(config) if model is None else _trained(config, model)
    outline = _outline(config, num_devices, sizes.num_blocks)
    divided = outline.tensor_parallel == 1 or "sequence-parallel" in config
    return Foreign(
        outline, sizes, config.ignored, _priced_by(config), _otherwise(config),
        divided, sizes.optimizer if "optimizer" in config else "",
    )  # fmt: skip


def _trained(config: Configuration, model: Transformer) -> Transformer:
    """Returns a model that is given as the arguments train it."""
    own = check_given(config, size_values(model), sizes_of_arguments)
    return dataclasses.replace(model, sequence=own.sequence, positions=own.positions, **training_of(config))


def megatron_sizes(path: pathlib.Path) -> Transformer:
    """Returns the sizes in a file with Megatron's arguments. Raises ValueError if it can't be read, or has none."""
    return sizes_of_arguments(_configuration(path, command_line_of(path, _TELLING)))


def _configuration(path: pathlib.Path, line: CommandLine) -> Configuration:
    """Returns the arguments of a command line, each once and known."""
    program = line.program.rpartition("/")[2]
    if _OTHER_PROGRAMS.search(program):
        raise wrong_line(
            path, line.line, f"{program} trains another model than a decoder of text, which isn't planned; give the "
            "script of a pretrain_gpt.py",
        )  # fmt: skip
    strange = [argument for argument in line.arguments if argument.name and argument.name not in _SETTINGS]
    applied, aside = dict[str, ShellArgument](), dict[int, dict[str, None]]()
    for argument in line.arguments:
        _check(path, argument, strange)
        if _SETTINGS[argument.name].use in ("aside", "off"):
            aside.setdefault(argument.line, {})[f"--{argument.name}"] = None
            continue
        before = applied.setdefault(argument.name, argument)
        if before.values != argument.values:
            other = f"line {before.line} has {short(before.value)}"
            why = f"--{argument.name} is {short(argument.value)}, but {other}; leave one out"
            raise wrong_line(path, argument.line, why)
    backend = applied.get("attention-backend")
    if backend is not None and backend.value not in _PLAIN:
        aside.setdefault(backend.line, {})["--attention-backend"] = None

    def wrong(name: str, why: str) -> ValueError:
        return wrong_line(path, applied[name].line if name in applied else line.line, why)

    values = {name: value_of(" ".join(argument.values)) if _SETTINGS[name].words else True
              for name, argument in applied.items()}  # fmt: skip
    for name, number in line.sourced:
        aside.setdefault(number, {})[f"source {name}, whose variables aren't read"] = None
    ignored = tuple(f"line {number}: {', '.join(names)}" for number, names in sorted(aside.items()))
    return Configuration(values, wrong, "--", "; mend it", ignored)


def _check(path: pathlib.Path, argument: ShellArgument, strange: Sequence[ShellArgument]) -> None:
    """Raises what is wrong with an argument by itself."""
    name, values, line, unknown, _ = argument
    shown = short(" ".join((f"--{name}" if name else "", *values)).strip())
    setting = _SETTINGS.get(name, Setting("unknown"))
    harmless = setting.use == "aside" and (setting.words == 2 or len(values) <= setting.words)
    if unknown is not None and (unknown.flow or not harmless):
        raise wrong_line(path, unknown.line, f"{shown} of line {line} isn't known: {unknown.reason}")
    if not name:
        raise wrong_line(path, line, f"{short(argument.value)} isn't an argument; leave it out")
    if setting.use == "refused":
        raise wrong_line(path, line, f"{shown} {setting.why}; leave it out, or plan without it")
    if setting.use == "off":
        if not values or not all(map(setting.leaves, values)):
            raise wrong_line(path, line, f"{shown} isn't planned; {setting.remedy}")
    elif argument in strange:
        names = [*dict.fromkeys(f"--{other.name[:_LONGEST]}" for other in strange)]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        raise wrong_line(
            path, line, f"{', '.join(names[:_MOST_NAMES])}{more} isn't known, so it may change what is "
            f"planned{near(name[:_LONGEST], _SETTINGS)}; leave it out if it changes neither the model nor its "
            "division, memory or time",
        )  # fmt: skip
    elif setting.words < 2 and len(values) != setting.words:
        raise wrong_line(path, line, f"{shown} must have {'one' if setting.words else 'no'} value; mend it")


def _otherwise(config: Configuration) -> tuple[str, ...]:
    """Returns what of the command line is priced otherwise."""
    groups, experts = config.number(_GROUPS, 0), config.number("expert-model-parallel-size", 1) > 1
    exchange = " ".join(dict.fromkeys(str(config.get(_EXCHANGE, "p2p")).split()))
    if not {*exchange.split()} <= {"p2p", "allgather", "all_gather", "a2a", "a2a+p2p"}:
        raise config.must_be(_EXCHANGE, "p2p, allgather, a2a or a2a+p2p, one for all blocks or each its own")
    wide = sum(config.number(name, 1, least=0) for name in _WIDE) if "first-last-layers-bf16" in config else 0
    precision = precision_of(config)
    dispatcher = config.one_of(_DISPATCHER, ("allgather", "alltoall", "flex"), "allgather")
    sentences = {
        f"--{_EXCHANGE} {exchange} is priced as p2p: keys and values go round a ring":
            exchange != "p2p" and config.number("context-parallel-size", 1) > 1,
        f"--{_GROUPS} {groups} is priced as if a token's experts were in any groups: all-to-alls send no more":
            groups > 0 and experts,
        f"--first-last-layers-bf16: {wide} blocks compute in bf16, but are priced in {precision} as the others":
            wide > 0 and precision not in ("bfloat16", "float16", "float32"),
        f"--{_GRAPHS} {config.get(_GRAPHS)} is priced {_LAUNCHED}": config.get(_GRAPHS, "none") != "none",
        f"--{_PIECES} is priced as if products waited for what tensor-parallel devices exchange":
            _PIECES in config and not _in_pieces(config) and config.number("tensor-model-parallel-size", 1) > 1,
        f"--{_DISPATCHER} {dispatcher} is priced as alltoall": dispatcher != "alltoall" and experts,
        "experts are without --moe-grouped-gemm, but priced with it: their products are grouped, which takes less time":
            "moe-grouped-gemm" not in config and config.number("num-experts", 0) > 0,
    } | {
        f"--{name} {config.get(name)} is priced as 0, without masks to make and to keep": real_of(config, name, 0) != 0
        for name in _DROPOUTS
    } | {f"--{name} is priced {how}": name in config for name, how in _PRICED_AS.items()}  # fmt: skip
    return tuple(sentence for sentence, applies in sentences.items() if applies)


def _in_pieces(config: Configuration) -> bool:
    """Returns whether products are cut in pieces, between which tensor-parallel devices exchange."""
    hides = "overlap-grad-reduce" in config or not _FULLY_SHARDED.isdisjoint(config.values)
    tensor = config.number("tensor-model-parallel-size", 1) > 1 and "sequence-parallel" in config
    return _PIECES in config and hides and tensor


def _priced_by(config: Configuration) -> dict[str, str]:
    """Returns how the command line's choices are priced, by the names of `PlanEstimator`'s arguments."""
    choices = {}
    if config.one_of("attention-backend", ("auto", "flash", "fused", *_PLAIN), "auto") in _PLAIN:
        choices["attention"] = "plain"
    name = "grad-reduce-in-bf16"
    if name in config:
        if "bf16" not in config:
            raise config.wrong(name, f"--{name} is without --bf16, which isn't priced; add --bf16, or leave it out")
        choices["runtime"] = "nemo"  # the same with gradients in half precision
    if "overlap-grad-reduce" not in config and _FULLY_SHARDED.isdisjoint(config.values):
        choices["overlap"] = "none"
    elif _in_pieces(config):
        choices["overlap"] = "tensor"
    return choices


def _outline(config: Configuration, num_devices: int, num_blocks: int) -> Outline:
    """Returns the plan on so many devices of a model of so many blocks."""
    name = "accumulate-allreduce-grads-in-fp32"
    if name in config and precision_of(config) == "float16":
        raise config.wrong(name, f"--{name} isn't priced with --fp16; leave it out, or give --bf16, which has it")
    along, stages = (config.number(f"{kind}-model-parallel-size", 1) for kind in ("tensor", "pipeline"))
    context = config.number("context-parallel-size", 1)
    replicas = config.replicas("pipeline-model-parallel-size", num_devices, stages, along, context)
    across = replicas * context
    micro = config.number("micro-batch-size", 0)
    if not micro:
        raise config.wrong("micro-batch-size", "--micro-batch-size is missing, but must be there; add it")
    batch = config.number("global-batch-size", 0) or micro * replicas
    if batch % (micro * replicas):
        whole = f"a multiple of {micro * replicas}: --micro-batch-size on {replicas} replicas"
        raise config.must_be("global-batch-size", whole)
    blocks, chunks = _blocks(config, num_blocks, stages)
    if chunks > 1 and config.number(_ROUND, stages) != stages:
        raise config.must_be(_ROUND, f"{stages}, the stages of the pipeline, to be planned")
    schedule = "1f1b" if chunks == 1 else "interleaved" if chunks == 2 else f"interleaved_{chunks}"
    count, (remat, share) = batch // micro // replicas, _remat(config, blocks)
    zero = _zero(config) if across > 1 else 0
    return Outline(
        batch, count, schedule, across, along, blocks, (remat,) * len(blocks), zero, _offload(config),
        **degrees_of(config, (across, along), DEGREE_ARGUMENTS, _sharded(config, across) if zero else 0),
        remat_share=share,
    )  # fmt: skip


def _sharded(config: Configuration, across: int) -> int:
    """Returns how many data-parallel devices share what ZeRO shares; 0: all of them."""
    instances = config.number(INSTANCES, 1)
    if across % instances:
        raise config.must_be(INSTANCES, f"a divisor of the {across} data-parallel devices")
    return across // instances if instances > 1 else 0


def _blocks(config: Configuration, num_blocks: int, stages: int) -> tuple[tuple[int, ...], int]:
    """The blocks of each stage, and the stages of each rank."""
    for name in (*_ENDS, *(_COUNTED if stages > 1 else ()), *_VIRTUAL):
        if name in config and LAYOUT in config:
            raise config.wrong(name, f"--{name} is beside a --{LAYOUT}; leave one out")
        if name in config and stages == 1:
            raise config.wrong(
                name, f"--{name} is for a pipeline, but there is one stage; leave it out, or give a "
                "--pipeline-model-parallel-size above 1",
            )  # fmt: skip
    if LAYOUT in config:
        return _laid_out(config, num_blocks, stages)
    first, last = (config.number(end, 0) for end in _ENDS)
    before, behind = (int(name in config and stages > 1) for name in _COUNTED)
    unplanned = before or behind or any(name in config for name in _VIRTUAL)
    for name in _ENDS:
        if name in config and unplanned:
            raise config.wrong(
                name, f"--{name} isn't planned with virtual stages, nor with ends that count as blocks; give a "
                f"--{LAYOUT}",
            )  # fmt: skip
    whole = num_blocks + before + behind
    chunks = _chunks(config, whole, stages)
    between = stages * chunks - bool(first) - bool(last)
    equal, rest = divmod(whole - first - last, between) if between else (0, whole - first - last)
    if rest or equal < 0 or (equal == 0 and between):
        name = next((name for name in (*_VIRTUAL, *_ENDS, *_COUNTED) if name in config), "num-layers")
        counted = " with the ends that count as blocks" if before or behind else ""
        raise config.wrong(
            name, f"{whole} blocks{counted} can't be cut into {stages * chunks} equal stages; give another "
            f"--num-layers or a --{LAYOUT}",
        )  # fmt: skip
    blocks = [*[first][: bool(first)], *[equal] * between, *[last][: bool(last)]]
    blocks[0] -= before
    blocks[-1] -= behind
    return tuple(blocks), chunks


def _chunks(config: Configuration, whole: int, stages: int) -> int:
    """How many stages a rank has."""
    count, per_stage = _VIRTUAL
    if per_stage not in config:
        return config.number(count, 0) or 1
    if count in config:
        raise config.wrong(per_stage, f"--{per_stage} is beside --{count}; leave one out")
    number = config.number(per_stage, 0)
    if not number or whole % (number * stages):
        raise config.wrong(
            per_stage, f"--{per_stage} is {number}, but must divide the blocks of a stage, {whole} in {stages} stages; "
            "change one of them",
        )  # fmt: skip
    return whole // (number * stages)


def _laid_out(config: Configuration, num_blocks: int, stages: int) -> tuple[tuple[int, ...], int]:
    try:
        blocks = blocks_of_layout(str(config.get(LAYOUT)), config.number("mtp-num-layers", 0))
    except ValueError as error:
        raise config.wrong(LAYOUT, str(error)) from None
    if sum(blocks) != num_blocks or len(blocks) % stages:
        raise config.wrong(
            LAYOUT, f"the layout has {sum(blocks)} blocks in {len(blocks)} stages, but must have {num_blocks} in a "
            f"multiple of {stages}; mend it, --num-layers or --pipeline-model-parallel-size",
        )  # fmt: skip
    return blocks, len(blocks) // stages


def _remat(config: Configuration, blocks: Sequence[int]) -> tuple[str, float]:
    """Returns what is computed again, and of which share of each stage's blocks."""
    if "checkpoint-activations" in config:  # the old name for all of them
        return "layer", 1.0
    if "recompute-activations" in config:
        return "selective", 1.0
    if "recompute-granularity" not in config:
        return "none", 1.0
    if config.one_of("recompute-granularity", ("full", "selective")) == "selective":
        return "selective", 1.0
    method, number = config.get("recompute-method"), config.number("recompute-num-layers", 0)
    if method == "uniform" and number > 1:
        raise config.must_be("recompute-num-layers", "1 to be planned")
    if method != "block" or number >= max(blocks):
        return "layer", 1.0
    share = number / max(blocks)
    if not number or any(blocks_again(share, of) != min(number, of) for of in blocks):
        raise config.wrong(
            "recompute-method", f"{number} blocks of each stage are computed again, but must be the same share of all "
            f"stages, which have {min(blocks)} to {max(blocks)}; read it with another number",
        )  # fmt: skip
    return "layer", share


def _zero(config: Configuration) -> int:
    if "use-torch-fsdp2" in config:
        return 3
    if not _FULLY_SHARDED.isdisjoint(config.values):
        return _LEVELS[config.one_of(_STRATEGY, _LEVELS, "optim_grads_params")]
    layers = "use-layer-wise-distributed-optimizer" in config or config.get("optimizer") == "dist_muon"
    return 2 if layers or "use-distributed-optimizer" in config else 0


def _offload(config: Configuration) -> Offload:
    if "optimizer-cpu-offload" not in config:
        return NO_OFFLOAD
    try:
        return Offload(optimizer=float(config.get("optimizer-offload-fraction", 1.0)))
    except (TypeError, ValueError) as error:
        raise config.wrong("optimizer-offload-fraction", f"{error}; mend it") from None
