"""A plan as a table for people, and what a device of its fullest stage keeps, part by part."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import final

from alpa_dejavu._util import units
from alpa_dejavu._util.near_names import name_ranges
from alpa_dejavu.plans.stage_rows import BRIEF, folded_cells, stage_rows
from alpa_dejavu.problem import Plan, StagePlan

_LONG = 0.1
"""A step of planning is named where it took so large a share of the whole."""


def plan_table(plan: Plan) -> str:
    """Returns a plan in plain text: a row for each run of equal stages, then the predicted seconds of a step."""
    rows = [[column.name for column in BRIEF], *folded_cells(BRIEF, stage_rows(plan))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.append(
        f"{plan.predicted} ({plan.num_micro_batches} micro-batches, {plan.schedule}, "
        f"{plan.cluster}); planned in {planning_text(plan)}"
    )
    if plan.correction is not None:
        runs = units.counted(plan.correction.runs, "run")
        lines.append(f"corrected by {runs}: {plan.correction.factor:.3f} times as predicted")
    return "\n".join(lines)


def planning_text(plan: Plan) -> str:
    """Returns the time that planning took, as text: all of it, and in brackets that of the steps that took long."""
    total_s = plan.total_planning_s
    long_s = {step: seconds for step, seconds in plan.planning_s.items() if seconds >= _LONG * total_s}
    steps = ", ".join(f"{step} {units.seconds(seconds)}" for step, seconds in long_s.items())
    return units.seconds(total_s) + (f" ({steps})" if steps else "")


@final
@dataclasses.dataclass(frozen=True)
class MemoryParts:
    """The parts of the memory of a device."""

    stage: int
    parts: tuple[tuple[str, float], ...]  # bytes by name on each device; they add up to its peak
    limit_bytes: float  # what a device has for it

    @property
    def total(self) -> float:
        """Returns the bytes of all parts together."""
        return sum(num_bytes for _, num_bytes in self.parts)


def lacking(plan: Plan, free_share: float = 0.0) -> list[str]:
    """Returns a sentence for the stages that don't fit into their devices' memory, of which a share is to be left free,
    and for those that offload more than their hosts have; none if all fit.
    """
    usable = 1 - free_share
    on_devices = {n: stage.memory_bytes - usable * stage.memory_limit_bytes for n, stage in enumerate(plan.stages)}
    on_hosts = {n: stage.offload.missing_bytes for n, stage in enumerate(plan.stages) if stage.offload is not None}
    return [
        *_sentence("of each device's memory", "", on_devices),
        *_sentence("of the hosts' for each device", "; offload less, or add memory or drives to the hosts", on_hosts),
    ]


def _sentence(where: str, remedy: str, missing: Mapping[int, float]) -> Iterator[str]:
    short = {n: num_bytes for n, num_bytes in missing.items() if num_bytes > 0}
    if short:
        span = units.span(short.values(), units.size)
        stages = "" if len(missing) == 1 else f" on {name_ranges(f'stage {n}' for n in short)}"
        yield f"{span} {where} are missing{stages}{remedy}"


def fullest_parts(plan: Plan) -> MemoryParts:
    """Returns what a device keeps that a plan fills most, of all the stages that are on it, with one of them."""
    shares = [stage.memory_bytes / (stage.memory_limit_bytes or 1.0) for stage in plan.stages]
    number = max(range(len(shares)), key=shares.__getitem__)
    on_it = [plan.stages[n] for n in plan.stages_on[plan.submesh_of[number]]]
    return MemoryParts(number, _parts(on_it), plan.stages[number].memory_limit_bytes)


def _parts(stages: Sequence[StagePlan]) -> tuple[tuple[str, float], ...]:
    """By what each is, which each of the stages says of all; where they don't know it, by how long it is kept."""
    first = stages[0]
    if first.memory_parts:
        return tuple((name, num_bytes) for name, num_bytes in first.memory_parts.items() if num_bytes)
    resident, temporary = sum(stage.resident_bytes for stage in stages), max(stage.temporary_bytes for stage in stages)
    return (
        ("weights, gradients and optimizer's states", resident),
        ("activations of micro-batches in flight", max(first.memory_bytes - resident - temporary, 0.0)),
        ("temporaries of a layer", temporary),
    )
