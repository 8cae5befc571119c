"""The bytes that a device of a plan's fullest stage keeps, part by part, so that a reader can add them up."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.problem import Plan, StagePlan

__all__ = ["MemoryParts", "fullest_parts"]


@final
@dataclasses.dataclass(frozen=True)
class MemoryParts:
    """The parts of a stage's memory.

    Attributes:
        stage: the stage's number.
        parts: what it keeps on each device, in bytes by name; they add up to its peak, unless other stages share its
            devices.
        limit_bytes: what a device has for it.
    """

    stage: int
    parts: tuple[tuple[str, float], ...]
    limit_bytes: float


def fullest_parts(plan: Plan) -> MemoryParts:
    """Returns what a device of the stage keeps that fills its memory most."""
    shares = [stage.memory_bytes / (stage.memory_limit_bytes or 1.0) for stage in plan.stages]
    number = max(range(len(shares)), key=shares.__getitem__)
    stage = plan.stages[number]
    return MemoryParts(number, _parts(stage), stage.memory_limit_bytes)


def _parts(stage: StagePlan) -> tuple[tuple[str, float], ...]:
    """By what each is; of stages that don't know it, by how long it is kept."""
    if stage.memory_parts:
        return tuple((name, num_bytes) for name, num_bytes in stage.memory_parts.items() if num_bytes)
    rest = stage.memory_bytes - stage.resident_bytes - stage.temporary_bytes
    return (
        ("weights, gradients and optimizer's states", stage.resident_bytes),
        ("activations of micro-batches in flight", max(rest, 0.0)),
        ("temporaries of a layer", stage.temporary_bytes),
    )
