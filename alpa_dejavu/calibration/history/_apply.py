"""Plans with their seconds corrected by past runs: all of them alike, so that they still make up the step."""

from __future__ import annotations

import dataclasses
from typing import Any

from alpa_dejavu.problem import Contingency, Plan, StagePlan, StepCorrection
from alpa_dejavu.simulation.step import Timeline


def corrected(plan: Plan, correction: StepCorrection) -> Plan:
    """Returns the plan with all its predicted seconds multiplied by the factor of a correction in place of an earlier
    one's; with uncorrected seconds if the correction rests on no past run.
    """
    before = 1.0 if plan.correction is None else plan.correction.factor
    used = correction if correction.runs else None
    factor = (1.0 if used is None else used.factor) / before
    return dataclasses.replace(
        plan,
        stages=_of_stages(plan.stages, factor),
        step_s=plan.step_s * factor,
        lower_bound_s=plan.lower_bound_s * factor,
        confidence=None if plan.confidence is None else plan.confidence.times(factor),
        contingencies={host: _of_contingency(other, factor) for host, other in plan.contingencies.items()},
        correction=used,
    )


def _of_contingency(contingency: Contingency, factor: float) -> Contingency:
    """Returns the contingency with its seconds multiplied; only what moves takes as long as it did."""
    stages, step_s = _of_stages(contingency.stages, factor), contingency.step_s * factor
    return dataclasses.replace(contingency, stages=stages, step_s=step_s)


def _of_stages(stages: tuple[StagePlan, ...], factor: float) -> tuple[StagePlan, ...]:
    return tuple(
        dataclasses.replace(stage, drawn=stage.drawn and stage.drawn.times(factor), **_multiplied(stage, factor))
        for stage in stages
    )


def corrected_timeline(timeline: Timeline, factor: float) -> Timeline:
    """Returns the timeline of a training step with all its seconds multiplied by a factor."""
    stages = tuple(dataclasses.replace(stage, **_multiplied(stage, factor)) for stage in timeline.stages)
    return dataclasses.replace(timeline, stages=stages, **_multiplied(timeline, factor))


def _multiplied(of: Any, factor: float) -> dict[str, Any]:
    """Returns the fields of seconds of a dataclass by name, each multiplied."""
    names = [field.name for field in dataclasses.fields(of) if field.name.endswith("_s")]
    return {name: getattr(of, name) * factor for name in names}
