"""A plan as a table for people, and what a device of its fullest stage keeps, part by part."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

from alpa_dejavu._util import units
from alpa_dejavu.plans.stage_rows import BRIEF, folded_cells, stage_rows
from alpa_dejavu.problem import ZERO_NAMES, Plan, StagePlan

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


_RECOMPUTED = {"none": "none", "selective": "selective", "layer": "full"}
"""The usual names of what backward passes compute again."""


def plan_facts(plan: Plan) -> list[tuple[str, str]]:
    """Returns a plan's degrees of parallelism, the parts of its batch, and the memory of its fullest device, each with
    its name, in the words of training frameworks.
    """
    facts = [("parallelism", parallelism_text(plan))]
    if plan.batch is not None:
        samples = plan.batch / plan.num_micro_batches
        replicas = [stage.data_parallel / stage.context_parallel for stage in plan.on_submeshes]
        share = units.span([samples / count for count in replicas], units.number)
        count = units.counted(plan.num_micro_batches, "micro-batch", "micro-batches")
        facts.append(("batch", f"{plan.batch} samples: {count} of {units.number(samples)}, {share} on each replica"))
    fullest = fullest_parts(plan)
    parts = ", ".join(f"{name} {units.size(num_bytes)}" for name, num_bytes in fullest.parts)
    used = units.size(sum(num_bytes for _, num_bytes in fullest.parts))
    return [*facts, ("memory", f"{used} of {units.size(fullest.limit_bytes)}, stage {fullest.stage}: {parts}")]


def parallelism_text(plan: Plan) -> str:
    """Returns a plan's degrees of parallelism, and what is shared and computed again, in the field's words; where
    stages differ, the least and the most, or each.
    """
    stages = plan.on_submeshes
    degrees: list[tuple[str, list[int], bool]] = [
        ("tensor", [stage.tensor_parallel for stage in stages], True),
        ("pipeline", [len(stages)], True),
        ("virtual stages", [len(plan.stages) // len(stages)], False),
        ("data", [stage.data_parallel // stage.context_parallel for stage in stages], True),
        ("context", [stage.context_parallel for stage in stages], False),
        ("expert", [stage.expert_parallel for stage in stages], False),
    ]
    texts = [f"{name} {_span(values)}" for name, values, always in degrees if always or max(values) > 1]
    groups = [stage.sharded for stage in stages]
    within = f" in groups of {_span(groups)}" if any(groups) else ""
    levels = (f"ZeRO-{ZERO_NAMES[stage.zero]}" if stage.zero else "no ZeRO" for stage in stages)
    shared = " or ".join(dict.fromkeys(levels))
    again = " or ".join(dict.fromkeys(map(_recomputed, plan.stages)))
    return ", ".join([*texts, shared + within, f"recompute {again}"])


def _recomputed(stage: StagePlan) -> str:
    share = "" if stage.remat_share == 1 else f" of {stage.remat_share:.0%} of the blocks"
    return _RECOMPUTED[stage.remat] + share


def _span(values: list[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else f"{min(values)} to {max(values)}"
