"""Searches while training goes on: measured steps re-fit the costs, and the plan follows where moving pays.

    follower = Follower(plan, kept, restart_s=20.0)
    follower.measured(stages_s, step_s)       # after some steps
    decision = follower.decide(steps_left=500)
    if decision.worth:
        ...                                   # train on by decision.plan
        follower.moved(decision)

Nothing here trains, or knows of Alpa.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Hashable, Sequence
from typing import Any, Protocol, final, runtime_checkable

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.calibration import Calibration
from alpa_dejavu.calibration.history import times
from alpa_dejavu.clusters.placement import site_of
from alpa_dejavu.costs.communication import CommunicationModel
from alpa_dejavu.costs.latency import LatencyModel
from alpa_dejavu.costs.scaled_layers import own_seconds, with_layer_factors
from alpa_dejavu.planning import given_stages
from alpa_dejavu.planning import plan as best_plan
from alpa_dejavu.planning._bench import Bench
from alpa_dejavu.planning._candidate import Candidate, Costs, simulated
from alpa_dejavu.planning._clock import Clock
from alpa_dejavu.planning._decision import Decision
from alpa_dejavu.planning._layer_factors import LayerFactors, MeasuredStage
from alpa_dejavu.planning._ranking import plan_of, settled
from alpa_dejavu.planning.kept import Kept
from alpa_dejavu.planning.kept_task import kept_prices, kept_task
from alpa_dejavu.planning.state_migration import layer_state, moves
from alpa_dejavu.plans.stage_rows import mesh_text
from alpa_dejavu.problem import (
    Cluster,
    Moves,
    NoPlanError,
    Plan,
    SearchSpace,
    Slicing,
    SlicingProblem,
    StageChoice,
    checks,
)
from alpa_dejavu.problem.run import ALPA_SCHEDULES
from alpa_dejavu.slicing import Slicer
from alpa_dejavu.slicing.makespan import Makespan

__all__ = ["Decision", "Follower", "FollowingSlicer", "LayerFactors", "MeasuredStage"]

_RECENT = 10
"""The number of measured steps whose median is what a step takes now."""
_LEAST = 0.01
"""A plan that saves less than this share of a step is no better: costs are known no better than that."""


@runtime_checkable
class FollowingSlicer(Protocol):
    """A slicer that can start from the solution of an earlier problem when costs have changed only a little."""

    def follow(self, problem: SlicingProblem, begun: Any = None) -> tuple[Slicing, Any]:
        """Returns the stages that solve a slicing problem, and the state from which to go on with the next problem.

        Args:
            problem: the costs of all stages.
            begun: the state that the call before returned; None: the search begins anew.
        """
        ...


@final
class Follower:
    """An observer of training that learns costs from measured steps, and says when another plan is worth moving to.

    Args:
        plan: the plan that runs at the start.
        kept: the record of what it was made from.
        restart_s: the seconds that changing to another plan takes besides moving the training state; may be set anew
            once they were measured.
        slicing: a slicer or its name. A `FollowingSlicer`, as "gradient", goes on from where it stood; others begin
            anew each time.
        factors: the model of layers' actual over predicted seconds to begin with, which also says how measurements are
            weighed; None: `LayerFactors` with its defaults.
        latency: the latency model that priced the plan, or its name.
        communication: the communication model that priced the plan, or its name.
        calibration: the calibration that priced the plan, in place of both models; "none": data sheets; None: the
            plan's models.

    Attributes:
        plan: the plan that runs now.
        factors: the model of layers' actual over predicted seconds, as learned so far.

    Raises:
        ValueError: restart_s is below 0; `kept` or `factors` is of another plan; the plan was priced by other models;
            or it has stages that the search doesn't offer.
    """

    def __init__(
        self,
        plan: Plan,
        kept: Kept,
        *,
        restart_s: float,
        slicing: str | Slicer = "dynamic",
        factors: LayerFactors | None = None,
        latency: str | LatencyModel = "auto",
        communication: str | CommunicationModel = "auto",
        calibration: str | os.PathLike[str] | Calibration | None = None,
    ) -> None:
        given = kept_prices(plan, kept, None, latency, communication, calibration)
        self._task = kept_task(plan, kept, given, slicing)
        self._costs = Bench(self._task, Clock()).costs(kept.model.num_layers, kept.run.num_micro_batches)
        self.plan, self.factors = plan, factors or LayerFactors(kept.model.num_layers)
        if self.factors.num_layers != plan.num_layers:
            raise ValueError(f"the factors are of {self.factors.num_layers} layers, but the plan has {plan.num_layers}")
        self._run, self._cluster = kept.run, given.cluster
        self._state = layer_state(kept.model)
        self._begun: Any = None
        self._steps_s: list[float] = []
        self._stages = _choices(plan, self._costs.space, self._cluster)
        self.restart_s = restart_s

    @property
    def restart_s(self) -> float:
        """Returns the seconds that changing to another plan takes besides moving the training state."""
        return self._restart_s

    @restart_s.setter
    def restart_s(self, seconds: float) -> None:
        checks.not_negative("follower", "restart_s", seconds)
        self._restart_s = seconds

    def measured(self, stages_s: Sequence[float], step_s: float) -> None:
        """Updates the factors from predicted to actual seconds of layers by a measured step of the plan that runs.

        Args:
            stages_s: the seconds for which each of S stages computed, without waiting for others: all micro-batches,
                and what comes once a step; shape (S,).
            step_s: the seconds of the whole step.

        Raises:
            ValueError: another number of stages, or seconds that aren't finite and above 0.
        """
        if len(stages_s) != len(self._stages):
            raise ValueError(f"{len(stages_s)} stages were measured, but the plan has {len(self._stages)}")
        for seconds in (*stages_s, step_s):
            checks.positive("follower", "measured seconds", seconds)
        own = own_seconds(self._costs.table)
        found: dict[Hashable, MeasuredStage] = {}
        for stage, seconds in zip(self._stages, stages_s, strict=True):
            layers_s = self._predicted(own, stage)
            rest_s = max(self._whole(stage) - float(layers_s.sum()), 0.0)
            found[stage] = MeasuredStage(layers_s, rest_s, float(seconds))
        self.factors = self.factors.measured(found)
        self._steps_s.append(float(step_s))

    def decide(self, steps_left: int) -> Decision:
        """Looks for the best plan by the costs as measured so far, and returns the decision whether to move to it.

        The ratio of measured to simulated step is taken to be the same for both plans.

        Args:
            steps_left: how many steps are still to be trained.

        Raises:
            ValueError: no step was measured since this plan runs, or a negative number of steps.
        """
        checks.not_negative("follower", "steps_left", steps_left)
        if not self._steps_s:
            raise ValueError("no step of this plan was measured; measure at least one before deciding")
        started = time.perf_counter()
        table = with_layer_factors(self._costs.table, self.factors.factors)
        costs = dataclasses.replace(self._costs, table=table)
        now = simulated(_candidate(costs, self._stages))
        ratio = float(np.median(self._steps_s[-_RECENT:])) / now.step_s
        best = self._best(costs)
        plan, moved, step_s = self.plan, Moves((), 0.0, 0.0), now.step_s
        if best is not None and best.step_s <= now.step_s * (1 - _LEAST):
            plan, step_s = best, best.step_s
            moved = moves(self.plan.stages, plan.stages, self._cluster, self._state, form=self._run.form)
        looked_s = time.perf_counter() - started
        if plan is not self.plan:
            plan = dataclasses.replace(times(plan, ratio), planning_s={"following": looked_s})
        return Decision(plan, now.step_s * ratio, step_s * ratio, moved, self.restart_s, steps_left, looked_s)

    def moved(self, decision: Decision) -> None:
        """Notes that training has moved to a decision's plan; what was learned of layers' costs stays."""
        self._stages = _choices(decision.plan, self._costs.space, self._cluster)
        self.plan, self._steps_s = decision.plan, []

    def _best(self, costs: Costs) -> Plan | None:
        """Returns the best plan by some costs; None if nothing fits."""
        task = dataclasses.replace(self._task, before=self.plan, factors=tuple(self.factors.factors.tolist()))
        if isinstance(task.slicer, FollowingSlicer) and costs.run.schedule in ALPA_SCHEDULES:
            found, self._begun = task.slicer.follow(_by_step(costs), self._begun)
            with contextlib.suppress(NoPlanError):  # on unlike hosts it may not pack
                return plan_of(task, settled(task, simulated(_candidate(costs, found.stages)))) if found.found else None
        with contextlib.suppress(NoPlanError):
            return best_plan(task, annotations=()).plan
        return None

    def _predicted(self, own: FloatArray, stage: StageChoice) -> FloatArray:
        """Returns the predicted seconds of each of a stage's layers in a step, zero for other layers; shape (L,)."""
        forward, backward, once = own[:, :, stage.submesh, stage.config]
        found = self._run.num_micro_batches * (forward + backward) + once
        layers = np.arange(len(found))
        return np.where((layers >= stage.first) & (layers <= stage.last), found, 0.0)

    def _whole(self, stage: StageChoice) -> float:
        """Returns the predicted seconds for which a stage computes in a step, collectives included."""
        micro_batch = float(self._costs.table.compute_s[stage.entry] + self._costs.table.collective_s[stage.entry])
        return self._run.num_micro_batches * micro_batch + float(self._costs.table.per_step_s[stage.entry])


def _candidate(costs: Costs, stages: tuple[StageChoice, ...]) -> Candidate:
    slicing = Slicing(costs.run.on_submeshes(stages), 0.0, 0.0, 0, 0.0)
    return Candidate(costs, slicing, chunks=stages if costs.run.form.chunks > 1 else ())


def _by_step(costs: Costs) -> SlicingProblem:
    """Returns the problem; where devices are not parts of one CPU, its objective is the simulated step."""
    problem, table = costs.problem, costs.table
    if problem.objective != "training":
        return problem
    forward_s = table.compute_forward_s + table.collective_forward_s
    return dataclasses.replace(problem, objective=Makespan(forward_s, costs.run.schedule))


def _choices(plan: Plan, space: SearchSpace, cluster: Cluster) -> tuple[StageChoice, ...]:
    """Returns the places of a plan's stages in the search space."""
    found = []
    for n, (stage, given) in enumerate(zip(plan.stages, given_stages(plan), strict=True)):
        submesh = site_of(stage, space, cluster)
        row = () if submesh is None else space.configs[submesh]
        if submesh is None or given.config not in row:
            shape = mesh_text(stage.logical_mesh)
            raise ValueError(f"stage {n} of the plan, as {shape}, isn't among what the search offers; plan once more")
        found.append(StageChoice(*stage.layers, submesh, row.index(given.config)))
    return tuple(found)
