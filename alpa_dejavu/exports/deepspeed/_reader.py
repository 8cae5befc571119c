"""A plan from DeepSpeed's JSON."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any, final

from alpa_dejavu._util import units
from alpa_dejavu._util.json_file import CheckedFile, read_checked
from alpa_dejavu.exports._outline import Outline
from alpa_dejavu.exports._settings import settings_of, unknown_setting
from alpa_dejavu.exports._target import Foreign, short
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import NO_OFFLOAD, Offload
from alpa_dejavu.sharding.transformers import execution

_REMEDY = 'a configuration of DeepSpeed\'s is a JSON object, such as {"train_batch_size": 32}'
_ADAM = ("adam", "adamw", "fusedadam", "cpuadam", "deepspeedcpuadam", "fused_adam")
_SHORT_NAMES = {"bfloat16": ("bf16", "bfp16"), "float16": ("fp16",), "float32": ("fp32",)}
_DEEPEST = 20
_SETTINGS = settings_of("deepspeed")
_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def read_deepspeed(path: pathlib.Path, num_devices: int, model: Transformer | None = None) -> Foreign:
    """Returns the plan that a configuration says; the model's sizes aren't in it, but its precision is."""
    configuration = _DeepSpeedSettings(read_checked(path, dict[str, Any], _REMEDY))
    sizes = None if model is None else dataclasses.replace(model, precision=configuration.precision())
    outline = configuration.outline(num_devices, sizes)
    return Foreign(
        outline,
        sizes,
        tuple(configuration.ignored()),
        configuration.priced_by(),
        tuple(configuration.otherwise(outline, sizes)),
    )


@final
class _DeepSpeedSettings:
    """The data of a configuration."""

    def __init__(self, file: CheckedFile[dict[str, Any]]) -> None:
        self._file, self._data = file, file.data
        if isinstance(self._data.get("zero_optimization"), bool):  # as it was before there were stages
            self._data["zero_optimization"] = {"stage": int(self._data["zero_optimization"])}
        if "bfloat16" in self._data:
            self._data.setdefault("bf16", self._data["bfloat16"])
        self._aside = list(self._without_effect())

    def _without_effect(self) -> Iterator[tuple[str, ...]]:
        """Yields the places of keys without effect; raises for one that isn't known, or is of what isn't planned."""
        for path, value in self._places():
            settings, key, shown = _SETTINGS[_section_of(path)], path[-1], ".".join(path)
            if key not in settings:
                raise self._wrong(path, unknown_setting(shown, key, settings))
            if settings[key].use == "off" and not (_is_off(value) or value in settings[key].allowed):
                why = f"{shown} is {short(value)}, which isn't planned; leave it out, or switch it off"
                raise self._wrong(path, why)
            if settings[key].use == "aside":
                yield path
        self._check_tensor_parallel(("tensor_parallel",), self._data.get("tensor_parallel"))
        kind = self._section("optimizer").get("type")
        if kind is not None and str(kind).lower() not in _ADAM:
            why = f"optimizer.type is {short(kind)}, but must be Adam or AdamW to be planned; change it"
            raise self._wrong(("optimizer", "type"), why)
        kinds = _SHORT_NAMES[self.precision()]
        for path, value in (
            (("data_types", "grad_accum_dtype"), self._section("data_types").get("grad_accum_dtype")),
            (("communication_data_type",), self._data.get("communication_data_type")),
        ):
            if value is not None and value not in kinds:
                why = f"{'.'.join(path)} is {short(value)}, but must be {kinds[0]} to be planned; leave it out"
                raise self._wrong(path, why)

    def _places(self) -> Iterator[tuple[tuple[str, ...], Any]]:
        for key, value in self._data.items():
            yield (key,), value
            section = _section_of((key, ""))
            if section not in _SETTINGS or value is None:
                continue
            for inner, inside in self._section(key).items():
                yield (key, inner), inside
                if inner in _SETTINGS and isinstance(inside, dict):
                    yield from (((key, inner, last), value) for last, value in inside.items())

    def _check_tensor_parallel(self, path: tuple[str, ...], value: Any) -> None:
        """Checks that nothing in DeepSpeed's groups for tensor parallelism has more than one device."""
        for key, inside in value.items() if isinstance(value, dict) else ():
            if isinstance(inside, dict):
                if len(path) < _DEEPEST:
                    self._check_tensor_parallel((*path, key), inside)
            elif key.endswith("size") and inside not in (0, 1, None):
                why = f"{'.'.join((*path, key))} is {short(inside)}, but must be 1 to be planned; leave it out"
                raise self._wrong((*path, key), why)

    def ignored(self) -> list[str]:
        lines = [(self._file.line_of(self._file.text, path), ".".join(path)) for path in self._aside]
        return [key if line is None else f"line {line}: {key}" for line, key in lines]

    def otherwise(self, outline: Outline, model: Transformer | None) -> Iterator[str]:
        """Yields what ZeRO 2 does beside what is priced: it shares gradients, too."""
        across = outline.data_parallel
        if model is not None and across > 1 and self._section("zero_optimization").get("stage") == 2:
            count, gradient_bytes = (
                outline.num_micro_batches,
                execution("deepspeed").in_precision(model.precision).gradient_bytes,
            )
            less = gradient_bytes * model.num_parameters * (1 - 1 / across) * (1 - outline.offload.gradients)
            shares = f", and shares them, which keeps {units.size(less)} less on each device" if less else ""
            yield f"ZeRO 2 is priced as ZeRO 1: it sums gradients after each of {count} micro-batches, not once{shares}"

    def precision(self) -> str:
        """Returns the dtype that it trains in: single precision without one of DeepSpeed's two others."""
        enabled = []
        for key, precision in (("bf16", "bfloat16"), ("fp16", "float16")):
            value = self._section(key).get("enabled", False)
            if value not in (True, False, None) or isinstance(value, int) is not isinstance(value, bool):
                why = f"{key}.enabled is {short(value)}, but must be true or false; write out what the run decides"
                raise self._wrong((key, "enabled"), why)
            enabled += [precision] if value else []
        if len(enabled) > 1:
            raise self._wrong(
                ("fp16", "enabled"), "fp16 and bf16 are both enabled, but one alone can be; leave one out"
            )
        return enabled[0] if enabled else "float32"

    def priced_by(self) -> dict[str, str]:
        """Returns how it is priced, by the names of `PlanEstimator`'s arguments: with what overlaps."""
        section = self._section("zero_optimization")
        overlaps = section.get("overlap_comm")
        overlaps = section.get("stage") == 3 if overlaps is None else bool(overlaps)
        return {} if overlaps else {"overlap": "none"}

    def outline(self, num_devices: int, model: Transformer | None) -> Outline:
        """Returns the plan on so many devices."""
        stages = self._stages()
        across, rest = divmod(num_devices, stages)
        if rest:
            why = f"{stages} stages must divide the {num_devices} devices of the cluster"
            raise self._wrong(("pipeline", "stages"), why)
        batch, count = self._batches(across)
        blocks = self._blocks(stages, model)
        return Outline(
            batch, count, "1f1b", across, 1, blocks, self._remat(stages), self._level(across), self._offload()
        )

    def _stages(self) -> int:
        value = self._section("pipeline").get("stages", 1)
        if value == "auto":
            return 1
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            why = f"pipeline.stages is {short(value)}, but must be a number, or 'auto'"
            raise self._wrong(("pipeline", "stages"), why)
        return value

    def _batches(self, across: int) -> tuple[int, int]:
        """The batch and the number of micro-batches: two of the three numbers say the third, and must agree with it."""
        values = [self._data.get(key) for key in _BATCHES]
        for key, value in zip(_BATCHES, values, strict=True):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise self._wrong((key,), f"{key} is {short(value)}, but must be a whole number of at least 1")
        batch, micro, count = values
        if batch is None and micro is not None:
            batch = micro * (count or 1) * across
        if batch is None:
            raise self._wrong((), f"{_BATCHES[0]} is missing, but must be there; add it")
        count = count or (1 if micro is None else max(batch // (micro * across), 1))
        if batch != (micro or batch // (count * across)) * count * across:
            why = f"{_BATCHES[0]} is {batch}, but must be {_BATCHES[1]} times {_BATCHES[2]} times {across} replicas"
            raise self._wrong((_BATCHES[0],), why)
        return batch, count

    def _blocks(self, stages: int, model: Transformer | None) -> tuple[int, ...]:
        where = ("pipeline", "parts")
        parts = self._section("pipeline").get("parts")
        if parts is None:
            if model is None:
                raise self._wrong((), "the number of blocks isn't said; give --model")
            how = self._section("pipeline").get("partition") or "uniform"
            if stages > 1 and how not in ("uniform", "best"):
                why = f"pipeline.partition is {short(how)}, but must be uniform, or give the ends of stages as parts"
                raise self._wrong(("pipeline", "partition"), why)
            equal, more = divmod(model.num_layers, stages)
            numbers = [equal + (n >= stages - more) for n in range(stages)]
        else:
            numbers = [b - a for a, b in itertools.pairwise(parts)] if _whole(parts) else []
            if len(numbers) != stages or parts[0] != 0 or min(numbers) < 1:
                why = f"pipeline.parts is {short(parts)}, but must be 0 and the ascending ends of {stages} stages"
                raise self._wrong(where, why)
        numbers[0] -= 1
        numbers[-1] -= 1
        return tuple(numbers)

    def _remat(self, stages: int) -> tuple[bool, ...]:
        section = self._section("pipeline")
        interval = section.get("activation_checkpoint_interval") or 0
        if interval not in (0, 1):
            where = ("pipeline", "activation_checkpoint_interval")
            raise self._wrong(where, f"{'.'.join(where)} is {short(interval)}, but must be 0 or 1 to be planned")
        every = bool(interval)
        again = section.get("recompute", [every] * stages)
        if not isinstance(again, list) or len(again) != stages:
            why = f"pipeline.recompute is {short(again)}, but must have a number for each of {stages} stages"
            raise self._wrong(("pipeline", "recompute"), why)
        return tuple(map(bool, again))

    def _level(self, across: int) -> int:
        where = ("zero_optimization", "stage")
        stage = self._section("zero_optimization").get("stage") or 0
        if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
            raise self._wrong(where, f"zero_optimization.stage is {short(stage)}, but must be 0, 1, 2 or 3")
        if stage > 1 and self._stages() > 1:
            raise self._wrong(where, f"zero_optimization.stage is {stage}, but must be 0 or 1 under a pipeline")
        return {0: 0, 1: 2, 2: 2, 3: 3}[stage] if across > 1 else 0

    def _offload(self) -> Offload:
        section = self._section("zero_optimization")
        shares, places = {}, set()
        least = {"offload_optimizer": 1, "offload_param": 3}
        for key, old in (("offload_optimizer", "cpu_offload"), ("offload_param", "cpu_offload_param")):
            place = section.get(key)
            if place is None:
                place = {"device": "cpu"} if section.get(old) or section.get(f"{old}s") else {}
            device = (place.get("device") or "none") if isinstance(place, dict) else place
            if device not in ("none", "cpu", "nvme"):
                why = f"{key}.device is {short(device)}, but must be none, cpu or nvme"
                raise self._wrong(("zero_optimization", key), why)
            if device != "none":
                if (section.get("stage") or 0) < least[key]:
                    why = (
                        f"{key} is with ZeRO stage {section.get('stage') or 0}, but must be with {least[key]} or above"
                    )
                    raise self._wrong(("zero_optimization", key), why)
                places.add(device)
                shares[key] = float(place.get("ratio", 1.0))
        activations = float(bool(self._section("activation_checkpointing").get("cpu_checkpointing", False)))
        if not shares and not activations:
            return NO_OFFLOAD
        if len(places) > 1:
            raise self._wrong(("zero_optimization",), "both offloads must be to one place, cpu or nvme, to be planned")
        share, parameters = shares.get("offload_optimizer", 0.0), shares.get("offload_param", 0.0)
        return Offload(share, share, parameters, activations, next(iter(places), "cpu"))

    def _section(self, key: str) -> dict[str, Any]:
        value = self._data.get(key)
        value = {} if value is None else value
        if not isinstance(value, dict):
            raise self._wrong((key,), f"{key} is {short(value)}, but must be an object")
        return value

    def _wrong(self, where: tuple[str, ...], why: str) -> ValueError:
        return self._file.problem(where, why)


def _section_of(path: tuple[str, ...]) -> str:
    """The section that a place is in, by its name among the settings."""
    return "" if len(path) == 1 else "bf16" if path[-2] == "bfloat16" else path[-2]


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _is_off(value: Any) -> bool:
    """Returns whether a feature's value switches it off: null, false, nothing, or groups that aren't enabled.

    >>> _is_off({"weights": {"shared_parameters": {"enabled": False}, "different_groups": {"a": {"bits": 8}}}})
    True
    """
    if not isinstance(value, dict):
        return value is None or value is False
    for key in ("enabled", "deepcompile", "shared_parameters"):
        if key in value:
            return _is_off(value[key])
    return all(_is_off(inner) for inner in value.values())
