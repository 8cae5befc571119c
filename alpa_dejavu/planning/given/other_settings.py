"""The settings each of which, changed alone, would make a plan's step shorter: the plans that they make are estimated.

In: a plan of a transformer by its sizes whose stages are alike but for their layers. Out: the settings by which its
framework's step is shorter and fits into memory, the shortest first; of a plan that doesn't fit, those
by which it does. A search would change several at once.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, final

from alpa_dejavu._util.ties import ordered
from alpa_dejavu.planning.given.fitting import fits, what_fits
from alpa_dejavu.planning.given.plan_estimate import PlanEstimator
from alpa_dejavu.planning.search.models.named_model import sized_transformer
from alpa_dejavu.planning.search.runtimes import RUNTIMES, Runtime, hindrances
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.plans.plan_changes import between, changes, outlines_of
from alpa_dejavu.plans.table import lacking
from alpa_dejavu.problem import ZERO_NAMES, NoPlanError, Plan

if TYPE_CHECKING:
    from alpa_dejavu.calibration import Calibration

_WORTH = 1e-3
"""A setting is told that makes a step shorter by more than this share."""
_DEGREES = ("tensor", "context", "pipeline", "micro-batch")
_SCHEDULES = ("1f1b", "interleaved", "interleaved_3", "interleaved_4", "zb_h1", "zb_v")
_SHARES = (0.25, 0.5, 0.75)
"""So large a part of the blocks is computed again where all needn't be."""


@final
@dataclasses.dataclass(frozen=True)
class OtherSetting:
    """A setting of a plan that is changed, and the step and the memory with it."""

    what: str  # the setting, such as "recompute"
    value: str  # what it is changed to
    plan: Plan

    @property
    def memory_bytes(self) -> float:
        """Returns the bytes of the fullest device."""
        return max(stage.memory_bytes for stage in self.plan.stages)


def other_settings(
    plan: Plan, calibration: str | os.PathLike[str] | Calibration | None = None
) -> list[OtherSetting]:
    """Returns the plans with one setting changed whose step is shorter and that fit into memory, the shortest first, of
    each setting the best; of a plan that doesn't fit, also those whose step is longer. There are none where the plan
    can't be estimated without tracing, or can't be said by settings.
    """
    framework = plan.priced_by and (plan.priced_by.runs_on or plan.priced_by.runtime.partition("+")[0])
    if framework not in RUNTIMES or not _is_sized(plan) or (outlines := outlines_of(plan, plan)) is None:
        return []
    try:
        estimators = {plan.priced_by: PlanEstimator(plan, calibration=calibration)}
        own = estimators[plan.priced_by].estimate(plan).plan
    except (NoPlanError, ValueError):
        return []
    cluster, best = estimators[plan.priced_by].cluster, dict[str, OtherSetting]()
    longest_s = math.inf if lacking(own) else own.step_s
    for other in _changed(plan, outlines[0], RUNTIMES[framework]):
        change = next(changes(plan, other), None)
        if change is None:  # of one stage no schedule is another, for instance
            continue
        # Whether Alpa runs it is told by what it was priced with, and hinders no other framework.
        if any(hindrances(dataclasses.replace(other, runs_on_alpa=True), framework, RUNTIMES[framework])):
            continue
        try:
            if other.priced_by not in estimators:  # another overlap, or sequence parallelism
                estimators[other.priced_by] = PlanEstimator(other, calibration=calibration)
            estimated = estimators[other.priced_by].estimate(other).plan
        except (NoPlanError, ValueError):
            continue
        what, _, value = change
        before_s = best[what].plan.step_s if what in best else longest_s
        if estimated.step_s < before_s * (1 - _WORTH) and fits(estimated, cluster):
            best[what] = OtherSetting(what, value, estimated)
    return ordered(best.values(), key=lambda setting: setting.plan.step_s)


def what_would_fit(plan: Plan, calibration: str | os.PathLike[str] | Calibration | None = None) -> str:
    """Returns what would fit of a plan that doesn't fit into memory; "" where it fits, or can't be estimated without
    tracing.
    """
    if not lacking(plan) or not _is_sized(plan):
        return ""
    try:
        return what_fits(plan, PlanEstimator(plan, calibration=calibration))
    except (NoPlanError, ValueError):
        return ""


def _is_sized(plan: Plan) -> bool:
    """Returns whether a plan is of a transformer by its sizes, which needn't be traced."""
    if plan.priced_by is None or plan.batch is None:
        return False
    runtime, samples = plan.priced_by.runtime.partition("+")[0], plan.batch // plan.num_micro_batches
    return sized_transformer(plan.model, runtime, samples, plan.priced_by.attention) is not None


def _changed(plan: Plan, outline: Outline, limits: Runtime) -> Iterator[Plan]:
    """Yields plans in which one setting is changed, also those that the framework can't run."""
    own = outline.choices
    whole = {kind: ((kind,) * len(outline.blocks), 1.0) for kind in ("none", "selective", "layer")}
    part = {share: (whole["layer"][0], share) for share in _SHARES}
    others = [(name, value) for name in _DEGREES for value in (own[name] * 2, own[name] // 2) if value]
    others += [("recompute", again) for again in (*whole.values(), *part.values()) if again != own["recompute"]]
    others += [("ZeRO", level) for level in ZERO_NAMES if level != own["ZeRO"]]
    others += [("schedule", name) for name in _SCHEDULES if name != own["schedule"]]
    for name, value in others:
        try:
            other = outline.with_choices({name: value})
            stages = tuple(other.stages(plan.devices_of_hosts))
        except (NoPlanError, ValueError):
            continue
        yield dataclasses.replace(
            plan, stages=stages, schedule=other.schedule, num_micro_batches=other.num_micro_batches
        )
    assert plan.priced_by is not None, "it was asked for"
    runtime, _, overlap = plan.priced_by.runtime.partition("+")
    profiles = [runtime] if overlap else []
    divided = plan.priced_by.sequence_parallel
    in_pieces = limits.in_pieces and outline.tensor_parallel > 1 and overlap != "tensor" and divided
    if not divided:
        sequence = dataclasses.replace(plan.priced_by, sequence_parallel=True)
        yield dataclasses.replace(plan, priced_by=sequence)
    for profile in (*profiles, *([f"{runtime}+tensor"] if in_pieces else [])):
        priced_by = dataclasses.replace(plan.priced_by, runtime=profile)
        yield between(plan, dataclasses.replace(plan, priced_by=priced_by), ["overlap"])
