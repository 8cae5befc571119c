"""Steps that are off their prediction: the stage that causes it, what is learned, and what would be planned now."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu.calibration.history import PastRun, StageSeconds
from alpa_dejavu.calibration.history.past_run import Origin
from alpa_dejavu.costs.communication import CommunicationModel
from alpa_dejavu.costs.latency import LatencyModel
from alpa_dejavu.planning.changed.state_migration import layer_state, moves
from alpa_dejavu.planning.planner import plan as best_plan
from alpa_dejavu.planning.search._decisive import Decisive
from alpa_dejavu.planning.search._searched import Searched
from alpa_dejavu.planning.search._stage_times import timeline_alone
from alpa_dejavu.planning.search.given_stages import GivenStages, given_stages
from alpa_dejavu.plans.plan_changes import stages_text
from alpa_dejavu.plans.stage_rows import layers_text
from alpa_dejavu.problem import Moves, Plan, StepCorrection
from alpa_dejavu.simulation.step import StageTimes

if TYPE_CHECKING:
    from alpa_dejavu.calibration import Calibration
    from alpa_dejavu.calibration.measurement import MeasuredPlan
    from alpa_dejavu.planning.result import PlanningResult
    from alpa_dejavu.planning.task import PlanningTask

_CAUSES = 0.25
"""A stage causes a step's error if, taking as long as measured, it alone makes up this share of it at least."""
_WORTH = 0.05
"""Another plan is worth telling if it saves this share of a step at least."""
_SETTLED = 0.05
"""Steps have settled if the medians of two windows of them differ by this share at most."""


@final
@dataclasses.dataclass(frozen=True)
class Deviation:
    """A step that is off its prediction by more than its interval, and what follows from it."""

    plan: Plan  # the plan that runs, whose confidence says the interval
    step_s: float  # the measured seconds of a step (a median)
    stage: int | None  # the index of the stage that causes it; None: no stage's computing does
    factor: float  # how many times as long as predicted that stage computes; 1 where there is none
    stays_s: float  # the seconds of a step of the plan that runs, by what was measured of its stages
    now: Plan  # the plan that would be chosen by what was measured
    moves: Moves  # the layers and bytes of training state that hosts take in to go on by it

    @property
    def matters(self) -> bool:
        """Returns whether another plan would be chosen whose step is 5 % shorter than measured, and than this one's."""
        if given_stages(self.now) == given_stages(self.plan):
            return False
        return self.now.step_s <= (1 - _WORTH) * min(self.stays_s, self.step_s)

    def saved_s(self, steps_left: int, restart_s: float) -> float:
        """Returns the seconds that the other plan saves over the steps left, less moving the state, and a restart."""
        return steps_left * (self.stays_s - self.now.step_s) - self.moves.seconds - restart_s

    def __str__(self) -> str:
        assert self.plan.confidence is not None, "else no step is off"
        step, predicted, low, high = map(
            units.seconds, (self.step_s, self.plan.step_s, *self.plan.confidence.interval_s)
        )
        cause = "no stage computes as much longer or shorter, so transfers, waiting or what comes once a step cause it"
        if self.stage is not None:
            stage = self.plan.stages[self.stage]
            cause = (
                f"stage {self.stage} ({layers_text(stage)} on {' '.join(stage.hosts)}) computes {self.factor:.2f} "
                "times as long as predicted"
            )
        now = f"now {stages_text(self.now)} would be chosen, with {units.seconds(self.now.step_s)} a step"
        return f"a step takes {step}, but {predicted} were predicted (with 90 % {low} to {high}): {cause}; {now}"


def has_settled(steps_s: Sequence[float], window: int) -> bool:
    """Returns whether the medians of the last two windows of so many steps are within 5 %; False with fewer steps.

    >>> has_settled([6.0, 0.4, 0.3, 0.2, 0.2, 0.2], 3), has_settled([6.0, 0.2, 0.21, 0.2, 0.9, 0.2], 3)
    (False, True)
    """
    before, last = steps_s[-2 * window : -window], steps_s[-window:]
    if len(before) < window:
        return False
    return abs(math.log(statistics.median(last) / statistics.median(before))) <= _SETTLED


def is_off(plan: Plan, steps_s: Sequence[float]) -> bool:
    """Returns whether the median of measured steps is outside the 90 % interval of the plan's step, if it has one."""
    if plan.confidence is None:
        return False
    low, high = plan.confidence.interval_s
    return not low <= statistics.median(steps_s) <= high


def deviation(task: PlanningTask, plan: Plan, measured: MeasuredPlan) -> Deviation:
    """Returns the cause of a measured step that is off, and the plan that would be chosen now. Raises ValueError if the
    plan doesn't fit the task, and NoPlanError if nothing fits.
    """
    planned, run = _estimated(task, plan), measured_run(task, plan, measured)
    stages = zip(measured.computing_s, planned.timeline.computing_s, strict=True)
    factors = [sum(computing_s) / predicted_s for computing_s, predicted_s in stages]
    stage = _cause(planned, factors, math.log(measured.step_s / planned.plan.step_s))
    chooser = Searched() if isinstance(task.chooser, Decisive) else task.chooser
    learned = dataclasses.replace(task, chooser=chooser, learned=(*task.learned, run), contenders=1)
    stays_s, now = _estimated(learned, plan).plan.step_s, best_plan(learned).plan
    factor = 1.0 if stage is None else factors[stage]
    moved = moves(plan.stages, now.stages, task.cluster, layer_state(planned.model), form=planned.run.form)
    return Deviation(plan, measured.step_s, stage, factor, stays_s, now, moved)


def measured_run(task: PlanningTask, plan: Plan, measured: MeasuredPlan) -> PastRun:
    """Returns the measured run of a plan, with what is predicted without past runs; ValueError if it doesn't fit."""
    models, raw = task.prices.models, _estimated(dataclasses.replace(task, learned=()), plan)
    return past_run(raw, measured, models.latency, models.communication, task.prices.calibration)


def past_run(
    planned: PlanningResult,
    measured: MeasuredPlan,
    latency: str | LatencyModel = "analytic",
    communication: str | CommunicationModel = "alpha-beta",
    calibration: Calibration | None = None,
) -> PastRun:
    """Returns a plan's measured run as the history stores it. `calibration` is what both models are from, if any."""
    stages = zip(planned.timeline.computing_s, measured.stages, measured.computing_s, strict=True)
    return PastRun(
        plan=planned.plan,
        origin=Origin.of(planned.model, planned.cluster, latency, communication, calibration),
        predicted_s=planned.plan.uncorrected_s,
        steps_s=measured.steps_s,
        stages=tuple(
            StageSeconds(stage.forward_s, stage.backward_s, stage.per_step_s, sum(computing), predicted)
            for predicted, stage, computing in stages
        ),
    )


def learned_correction(task: PlanningTask, plan: Plan) -> StepCorrection:
    """Returns the factor by which the past runs of a task have changed a step; its spread is that of the step."""
    raw_s = _estimated(dataclasses.replace(task, learned=()), plan).plan.step_s
    low, high = (plan.step_s, plan.step_s) if plan.confidence is None else plan.confidence.interval_s
    runs = len(task.learned)
    return StepCorrection(plan.step_s / raw_s, math.log(high / low) / (2 * REACH_90), runs, runs)


def _estimated(task: PlanningTask, plan: Plan) -> PlanningResult:
    """Returns a plan with its figures as the task predicts them."""
    chooser, layers, counts = GivenStages(tuple(given_stages(plan))), (plan.num_layers,), (plan.num_micro_batches,)
    own = dataclasses.replace(task, chooser=chooser, layers=layers, micro_batches=counts, correction=None)
    return best_plan(own, annotations=())


def _cause(planned: PlanningResult, factors: Sequence[float], off: float) -> int | None:
    """Returns the stage that explains most of a step's error: `off`, the logarithm of its measured over predicted
    seconds.

    It is the mean of how much longer the step gets if that stage alone takes as long as measured, and how much shorter
    if it alone takes as long as predicted.
    """

    def log_step(factors: Sequence[float]) -> float:
        times = [_longer(stage, factor) for stage, factor in zip(planned.timeline.stages, factors, strict=True)]
        return math.log(timeline_alone(times, planned.cluster, planned.run).step_s)

    predicted, measured, moved = log_step([1.0] * len(factors)), log_step(factors), []
    for n in range(len(factors)):
        alone = [factor if m == n else 1.0 for m, factor in enumerate(factors)]
        others = [1.0 if m == n else factor for m, factor in enumerate(factors)]
        moved.append(math.copysign(0.5, off) * (log_step(alone) - predicted + measured - log_step(others)))
    best = int(np.argmax(moved))
    return best if moved[best] >= _CAUSES * abs(off) else None


def _longer(times: StageTimes, factor: float) -> StageTimes:
    """Returns a stage's times with its passes, and the collectives in them, taking `factor` of their time."""
    names = ("forward_s", "backward_s", "forward_collective_s", "backward_collective_s", "backward_weight_s")
    return dataclasses.replace(times, **{name: getattr(times, name) * factor for name in names})
