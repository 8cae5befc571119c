"""DeepSpeed as a target: its JSON, with a subclass of its pipeline module that takes its stages from it, and back.

References:
    Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any, Final

from alpa_dejavu._util import units
from alpa_dejavu._util.json_file import read_checked
from alpa_dejavu.exports._outline import commented, filled, heading
from alpa_dejavu.exports._settings import Configuration, json_settings, short, whole_numbers
from alpa_dejavu.exports._target import Files, Foreign
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.problem import NO_OFFLOAD, Offload, Plan
from alpa_dejavu.sharding.transformers import execution

RELEASE = "DeepSpeed 0.19"
_PRECISIONS: Final = {"bf16": "bfloat16", "fp16": "float16"}
"""The sections that say in what precision it trains; none of them: in single precision."""
_LEVELS: Final = {0: 0, 1: 2, 2: 2, 3: 3}
"""The plan's level of each of DeepSpeed's: ZeRO 1 is a plan's level 2, with gradients whole until the step."""
_REMEDY = 'a configuration of DeepSpeed\'s is a JSON object, such as {"train_batch_size": 32}'
_OPTIMIZERS: Final = {"AdamW": "adamw", "SGD": "sgd", "Adafactor": "adafactor", "Lion": "lion", "Muon": "muon"}
"""Optimizers by the types that DeepSpeed, or PyTorch, has."""
_NAMES: Final = {
    **{name.lower(): ours for name, ours in _OPTIMIZERS.items()}, **dict.fromkeys(("fusedlion", "cpulion"), "lion"),
    **dict.fromkeys(("adam", "fusedadam", "cpuadam", "deepspeedcpuadam", "fused_adam"), "adamw"),
}  # fmt: skip
_SHORT_NAMES = {"bfloat16": ("bf16", "bfp16"), "float16": ("fp16",), "float32": ("fp32",)}
_DEEPEST = 20
_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_ZERO = "zero_optimization"


def deepspeed_files(plan: Plan, outline: Outline, sizes: Transformer) -> Files:
    """Returns DeepSpeed's JSON, and a pipeline module whose stages are the plan's."""
    lines = [
        *heading(plan, outline, RELEASE), "",
        f"Layers in order: embeddings, {sizes.num_blocks} blocks, and the head; the loss is loss_fn.",
        "deepspeed_config.json has what DeepSpeed reads: batch sizes from the plan's batch, micro-batches and",
        "replicas; zero_optimization from its ZeRO level (ZeRO 1 is level 2 of a plan: it shares the optimizer's state",
        "and step) and its offload. pipeline.parts are the first layers of its stages, and pipeline.recompute its",
        "remat: DeepSpeed itself doesn't know these two, PlannedPipeline reads them.",
    ]  # fmt: skip
    return {
        "deepspeed_config.json": json.dumps(_configuration(outline, sizes), indent=2) + "\n",
        "deepspeed_plan.py": commented(lines) + filled("deepspeed_plan"),
    }


def _configuration(outline: Outline, sizes: Transformer) -> dict[str, Any]:
    again = [int(remat == "layer") for remat in outline.remat]
    kind = next((name for name, ours in _OPTIMIZERS.items() if ours == sizes.optimizer), "AdamW")
    offload, ends = outline.offload, [last + 1 for _, last in outline.layers]
    zero: dict[str, Any] = {
        "stage": 3 if outline.zero == 3 or offload.parameters else 1 if outline.zero == 2 or offload.optimizer else 0
    }
    if outline.sharded and zero["stage"] == 3:
        zero["mics_shard_size"] = outline.sharded
    for key, share in (("offload_optimizer", offload.optimizer), ("offload_param", offload.parameters)):
        if share:
            zero[key] = {"device": offload.place, "pin_memory": True}
            zero[key] |= {"nvme_path": "/local_nvme"} if offload.place == "nvme" else {}
            zero[key] |= {"ratio": share} if share < 1 else {}
    return {
        **dict(zip(_BATCHES, (outline.batch, outline.micro_batch, outline.num_micro_batches), strict=True)),
        **{section: {"enabled": True} for section, name in _PRECISIONS.items() if name == sizes.precision},
        **({"sequence_parallel_size": outline.context_parallel} if outline.context_parallel > 1 else {}),
        **({} if kind == "AdamW" else {"optimizer": {"type": kind, "params": {"lr": 1e-4}}}),
        _ZERO: zero,
        "pipeline": {"stages": outline.pipeline, "parts": [0, *ends], "recompute": again},
        **({"activation_checkpointing": {"cpu_checkpointing": True}} if offload.activations else {}),
    }


def read_deepspeed(path: pathlib.Path, num_devices: int, model: Transformer | None = None) -> Foreign:
    """Returns the plan that a configuration says; the model's sizes aren't in it, but its precision is."""
    file = read_checked(path, dict[str, Any], _REMEDY)
    if isinstance(file.data.get(_ZERO), bool):  # as it was before there were stages
        file.data[_ZERO] = {"stage": int(file.data[_ZERO])}
    if "bfloat16" in file.data:
        file.data.setdefault("bf16", file.data["bfloat16"])
    config = json_settings("deepspeed", file)
    _check_tensor_parallel(config, "tensor_parallel", config.get("tensor_parallel"))
    kind, precision = config.get("optimizer.type"), _precision(config)
    if kind is not None and str(kind).lower() not in _NAMES:
        raise config.must_be("optimizer.type", f"one of {', '.join(_OPTIMIZERS)} to be planned; change it")
    for key in ("data_types.grad_accum_dtype", "communication_data_type"):
        if config.get(key) not in (None, *_SHORT_NAMES[precision]):
            raise config.must_be(key, f"{_SHORT_NAMES[precision][0]} to be planned; leave it out")
    trained: dict[str, Any] = {} if kind is None else {"optimizer": _NAMES[str(kind).lower()]}
    sizes = None if model is None else dataclasses.replace(model, precision=precision, **trained)
    stages = 1 if config.get("pipeline.stages") == "auto" else config.number("pipeline.stages", 1)
    context = config.number("sequence_parallel_size", 1)
    if context > 1 and stages > 1:
        raise config.must_be("sequence_parallel_size", "1 under a pipeline")
    replicas = config.replicas("pipeline.stages", num_devices, stages, context=context)
    batch, count = _batches(config, replicas)
    blocks = _blocks(config, stages, sizes)
    remat, level, across = _remat(config, stages), _LEVELS[_level(config, stages)], replicas * context
    outline = Outline(
        batch, count, "1f1b", across, 1, blocks, remat, level if across > 1 else 0, _offload(config), context,
        sharded=_sharded(config, across),
    )  # fmt: skip
    overlaps = config.get(f"{_ZERO}.overlap_comm", config.get(f"{_ZERO}.stage") == 3)
    priced_by = {} if overlaps else {"overlap": "none"}
    otherwise = tuple(_otherwise(config, outline, sizes))
    return Foreign(outline, sizes, config.ignored, priced_by, otherwise, trained_by=trained.get("optimizer", ""))


def _check_tensor_parallel(config: Configuration, name: str, value: Any) -> None:
    """Checks that nothing in DeepSpeed's groups for tensor parallelism has more than one device."""
    for key, inside in value.items() if isinstance(value, dict) else ():
        if isinstance(inside, dict) and name.count(".") < _DEEPEST:
            _check_tensor_parallel(config, f"{name}.{key}", inside)
        elif key.endswith("size") and inside not in (0, 1, None):
            why = f"{name}.{key} is {short(inside)}, but must be 1 to be planned; leave it out"
            raise config.wrong(f"{name}.{key}", why)


def _otherwise(config: Configuration, outline: Outline, model: Transformer | None) -> Iterator[str]:
    """Yields what ZeRO 2 does beside what is priced: it shares gradients, too."""
    across, count = outline.data_parallel, outline.num_micro_batches
    if model is not None and across > 1 and config.get(f"{_ZERO}.stage") == 2:
        gradient_bytes = execution("deepspeed").in_precision(model.precision).gradient_bytes
        less = gradient_bytes * model.num_parameters * (1 - 1 / across) * (1 - outline.offload.gradients)
        shares = f", and shares them, which keeps {units.size(less)} less on each device" if less else ""
        yield f"ZeRO 2 is priced as ZeRO 1: it sums gradients after each of {count} micro-batches, not once{shares}"


def _precision(config: Configuration) -> str:
    """Returns the dtype that it trains in: single precision without one of DeepSpeed's two others."""
    enabled = [name for section, name in _PRECISIONS.items() if config.flag(f"{section}.enabled")]
    if len(enabled) > 1:
        raise config.wrong("fp16.enabled", "fp16 and bf16 are both enabled, but one alone can be; leave one out")
    return enabled[0] if enabled else "float32"


def _batches(config: Configuration, across: int) -> tuple[int, int]:
    """The batch and the number of micro-batches: two of the three numbers say the third, and must agree with it."""
    batch, micro, count = (config.number(key, 0) for key in _BATCHES)
    batch = batch or micro * (count or 1) * across
    if not batch:
        raise config.wrong("", f"{_BATCHES[0]} is missing, but must be there; add it")
    count = count or (max(batch // (micro * across), 1) if micro else 1)
    if batch != (micro or batch // (count * across)) * count * across:
        why = f"{_BATCHES[0]} is {batch}, but must be {_BATCHES[1]} times {_BATCHES[2]} times {across} replicas"
        raise config.wrong(_BATCHES[0], why)
    return batch, count


def _blocks(config: Configuration, stages: int, model: Transformer | None) -> tuple[int, ...]:
    parts = config.get("pipeline.parts")
    if parts is None:
        if model is None:
            raise config.wrong("", "there is no number of blocks in it; give --model")
        if stages > 1 and config.get("pipeline.partition", "uniform") not in ("uniform", "best"):
            raise config.must_be("pipeline.partition", "uniform, or give the ends of stages as parts")
        equal, more = divmod(model.num_layers, stages)
        numbers = [equal + (n >= stages - more) for n in range(stages)]
    else:
        numbers = [b - a for a, b in itertools.pairwise(parts)] if whole_numbers(parts) else []
        if len(numbers) != stages or parts[0] != 0 or min(numbers) < 1:
            raise config.must_be("pipeline.parts", f"0 and the ascending ends of {stages} stages")
    numbers[0] -= 1
    numbers[-1] -= 1
    return tuple(numbers)


def _sharded(config: Configuration, across: int) -> int:
    """Returns among how many devices MiCS shares parameters, instead of among all."""
    name = f"{_ZERO}.mics_shard_size"
    size = config.number(name, -1)
    if size > 0 and (across % size or config.get(f"{_ZERO}.stage") != 3):
        raise config.must_be(name, f"a divisor of the {across} data-parallel devices, with ZeRO stage 3")
    return size if 0 < size < across else 0


def _remat(config: Configuration, stages: int) -> tuple[str, ...]:
    interval = config.get("pipeline.activation_checkpoint_interval", 0)
    if interval not in (0, 1):
        raise config.must_be("pipeline.activation_checkpoint_interval", "0 or 1 to be planned")
    again = config.get("pipeline.recompute", [interval] * stages)
    if not isinstance(again, list) or len(again) != stages:
        raise config.must_be("pipeline.recompute", f"a list with a number for each of {stages} stages")
    return tuple("layer" if number else "none" for number in again)


def _level(config: Configuration, stages: int) -> int:
    """Returns the level by DeepSpeed's own count."""
    name = f"{_ZERO}.stage"
    stage = config.number(name, 0)
    if stage > 3:
        raise config.must_be(name, "0, 1, 2 or 3")
    if stage > 1 and stages > 1:
        raise config.must_be(name, "0 or 1 under a pipeline")
    return stage


def _offload(config: Configuration) -> Offload:
    shares, places = {}, set()
    for key, old, least in (("offload_optimizer", "cpu_offload", 1), ("offload_param", "cpu_offload_param", 3)):
        name = f"{_ZERO}.{key}"
        place = config.get(name)
        if place is None:
            place = {"device": "cpu"} if config.get(f"{_ZERO}.{old}") or config.get(f"{_ZERO}.{old}s") else {}
        device = (place.get("device") or "none") if isinstance(place, dict) else place
        if device not in ("none", "cpu", "nvme"):
            raise config.wrong(name, f"{key}.device is {short(device)}, but must be none, cpu or nvme")
        if device != "none":
            stage = config.get(f"{_ZERO}.stage", 0)
            if stage < least:
                raise config.wrong(name, f"{key} is with ZeRO stage {stage}, but must be with {least} or above")
            places.add(device)
            shares[key] = config.real(f"{name}.ratio", 1.0)
    activations = float(bool(config.get("activation_checkpointing.cpu_checkpointing")))
    if not shares and not activations:
        return NO_OFFLOAD
    if len(places) > 1:
        raise config.wrong(_ZERO, "both offloads must be to one place, cpu or nvme, to be planned")
    share, parameters = shares.get("offload_optimizer", 0.0), shares.get("offload_param", 0.0)
    return Offload(share, share, parameters, activations, next(iter(places), "cpu"))
