"""Plans with their seconds corrected by past runs: all of them alike, so that they still make up the step."""

from __future__ import annotations

import dataclasses
from typing import Any

from alpa_dejavu.problem import Plan, StepCorrection
from alpa_dejavu.simulate import Timeline


def corrected(plan: Plan, correction: StepCorrection) -> Plan:
    """The plan with all its seconds multiplied; as it was predicted where no run says anything."""
    before = 1.0 if plan.correction is None else plan.correction.factor
    used = correction if correction.runs else None
    factor = (1.0 if used is None else used.factor) / before
    return dataclasses.replace(
        plan,
        stages=tuple(dataclasses.replace(stage, **_multiplied(stage, factor)) for stage in plan.stages),
        step_s=plan.step_s * factor,
        lower_bound_s=plan.lower_bound_s * factor,
        correction=used,
        confidence=None if plan.confidence is None else plan.confidence.times(factor),
    )


def corrected_timeline(timeline: Timeline, factor: float) -> Timeline:
    """The timeline with all its seconds multiplied."""
    stages = tuple(dataclasses.replace(stage, **_multiplied(stage, factor)) for stage in timeline.stages)
    return dataclasses.replace(timeline, stages=stages, **_multiplied(timeline, factor))


def _multiplied(of: Any, factor: float) -> dict[str, Any]:
    """Its fields of seconds."""
    names = [field.name for field in dataclasses.fields(of) if field.name.endswith("_s")]
    return {name: getattr(of, name) * factor for name in names}
