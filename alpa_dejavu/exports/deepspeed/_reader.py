"""A plan from DeepSpeed's JSON."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from typing import Any, final

from alpa_dejavu._util.json_file import CheckedFile, read_checked
from alpa_dejavu.exports._foreign import Foreign, Reader
from alpa_dejavu.exports._outline import Outline
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import NO_OFFLOAD, Offload

__all__ = ["DeepSpeedReader"]

_REMEDY = 'a configuration of DeepSpeed\'s is a JSON object, such as {"train_batch_size": 32}'
_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


@final
@dataclasses.dataclass(frozen=True)
class DeepSpeedReader(Reader):
    """A reader of DeepSpeed's JSON. Without `pipeline.parts` it says a plan of one stage, or of equal stages."""

    def read(self, path: pathlib.Path, num_devices: int, model: Transformer | None = None) -> Foreign:
        """Returns the plan that a configuration says; the model's sizes aren't in it."""
        said = _Said(read_checked(path, dict[str, Any], _REMEDY))
        return Foreign(said.outline(num_devices, model), model, tuple(said.ignored()))


@final
class _Said:
    """The data of a configuration."""

    def __init__(self, file: CheckedFile[dict[str, Any]]) -> None:
        self._file, self._data = file, file.data

    def ignored(self) -> list[str]:
        known = (*_BATCHES, "zero_optimization", "pipeline", "bf16", "fp16", "activation_checkpointing")
        aside = [key for key in self._data if key not in known]
        lines = [(self._file.line_of(self._file.text, (key,)), key) for key in aside]
        found = [key if line is None else f"line {line}: {key}" for line, key in lines]
        if self._section("zero_optimization").get("stage") == 2:
            line = self._file.line_of(self._file.text, ("zero_optimization", "stage"))
            found.append(f"line {line}: that ZeRO 2 shares gradients, too; it is priced as ZeRO 1")
        return found

    def outline(self, num_devices: int, model: Transformer | None) -> Outline:
        """Returns the plan on so many devices."""
        stages = self._stages()
        across, rest = divmod(num_devices, stages)
        if rest:
            said = f"{stages} stages must divide the {num_devices} devices of the cluster"
            raise self._wrong(("pipeline", "stages"), said)
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
            raise self._wrong(("pipeline", "stages"), f"pipeline.stages is {value!r}, but must be a number, or 'auto'")
        return value

    def _batches(self, across: int) -> tuple[int, int]:
        """The batch and the number of micro-batches: two of the three numbers say the third, and must agree with it."""
        values = [self._data.get(key) for key in _BATCHES]
        for key, value in zip(_BATCHES, values, strict=True):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise self._wrong((key,), f"{key} is {value!r}, but must be a whole number of at least 1")
        batch, micro, count = values
        if batch is None and micro is not None:
            batch = micro * (count or 1) * across
        if batch is None:
            raise self._wrong((), f"{_BATCHES[0]} is missing, but must be there; add it")
        count = count or (1 if micro is None else max(batch // (micro * across), 1))
        if batch != (micro or batch // (count * across)) * count * across:
            said = f"{_BATCHES[0]} is {batch}, but must be {_BATCHES[1]} times {_BATCHES[2]} times {across} replicas"
            raise self._wrong((_BATCHES[0],), said)
        return batch, count

    def _blocks(self, stages: int, model: Transformer | None) -> tuple[int, ...]:
        where = ("pipeline", "parts")
        parts = self._section("pipeline").get("parts")
        if parts is None:
            if model is None:
                raise self._wrong((), "the number of blocks isn't said; give --model")
            equal, more = divmod(model.num_layers, stages)
            numbers = [equal + (n >= stages - more) for n in range(stages)]
        else:
            numbers = [b - a for a, b in itertools.pairwise(parts)] if _whole(parts) else []
            if len(numbers) != stages or parts[0] != 0 or min(numbers) < 1:
                said = f"pipeline.parts is {parts!r}, but must be 0 and the ascending ends of {stages} stages"
                raise self._wrong(where, said)
        numbers[0] -= 1
        numbers[-1] -= 1
        return tuple(numbers)

    def _remat(self, stages: int) -> tuple[bool, ...]:
        section = self._section("pipeline")
        every = bool(section.get("activation_checkpoint_interval", 0))
        again = section.get("recompute", [every] * stages)
        if not isinstance(again, list) or len(again) != stages:
            said = f"pipeline.recompute is {again!r}, but must have a number for each of {stages} stages"
            raise self._wrong(("pipeline", "recompute"), said)
        return tuple(map(bool, again))

    def _level(self, across: int) -> int:
        where = ("zero_optimization", "stage")
        stage = self._section("zero_optimization").get("stage", 0)
        if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
            raise self._wrong(where, f"zero_optimization.stage is {stage!r}, but must be 0, 1, 2 or 3")
        if stage > 1 and self._stages() > 1:
            raise self._wrong(where, f"zero_optimization.stage is {stage}, but must be 0 or 1 under a pipeline")
        return {0: 0, 1: 2, 2: 2, 3: 3}[stage] if across > 1 else 0

    def _offload(self) -> Offload:
        section = self._section("zero_optimization")
        shares, places = {}, set()
        for key in ("offload_optimizer", "offload_param"):
            there = section.get(key, {})
            device = there.get("device", "none") if isinstance(there, dict) else None
            if device not in ("none", "cpu", "nvme"):
                said = f"{key}.device is {device!r}, but must be none, cpu or nvme"
                raise self._wrong(("zero_optimization", key), said)
            if device != "none":
                places.add(device)
                shares[key] = float(there.get("ratio", 1.0))
        activations = float(bool(self._section("activation_checkpointing").get("cpu_checkpointing", False)))
        if not shares and not activations:
            return NO_OFFLOAD
        if len(places) > 1:
            raise self._wrong(("zero_optimization",), "both offloads must be to one place, cpu or nvme, to be planned")
        share, parameters = shares.get("offload_optimizer", 0.0), shares.get("offload_param", 0.0)
        return Offload(share, share, parameters, activations, next(iter(places), "cpu"))

    def _section(self, key: str) -> dict[str, Any]:
        value = self._data.get(key, {})
        if not isinstance(value, dict):
            raise self._wrong((key,), f"{key} is {value!r}, but must be an object")
        return value

    def _wrong(self, where: tuple[str, ...], said: str) -> ValueError:
        return self._file.problem(where, said)


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in values)
