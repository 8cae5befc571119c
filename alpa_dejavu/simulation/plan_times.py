"""A plan's stages as the simulation takes them, and what a step takes when their times change."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias, final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.clusters.host_classes import hosts_by_names
from alpa_dejavu.problem import Plan, StageOffload, StagePlan
from alpa_dejavu.simulation.stage_slopes import step_slopes
from alpa_dejavu.simulation.step import StageTimes, step_seconds

__all__ = ["PlanStep", "Times", "plan_times", "scaled", "shortened"]

Times: TypeAlias = tuple[StageTimes, ...]
"""The times of all stages, in their order."""


@final
class PlanStep:
    """A function from the times of a plan's stages to the seconds of its step.

    The step that the plan has is taken to be right at the plan's own times, whatever it was predicted by; at other
    times it is multiplied by the ratio of the two simulated steps. Where all devices share one CPU nothing waits idly:
    a change saves as many seconds as it takes off the average device's work.

    Args:
        plan: the plan whose step it is.
        times: the present times of its stages; None: as the plan has them.
        factor: where devices share a CPU, the ratio of the plan's seconds to those in `times`.
    """

    def __init__(self, plan: Plan, times: Times | None = None, factor: float = 1.0) -> None:
        self._plan, self._factor = plan, factor
        self.times = plan_times(plan) if times is None else times
        self._shared = (plan.hardware or hosts_by_names(plan)).shared
        self._now = 0.0 if self._shared else self._simulated(self.times, plan.num_micro_batches)

    def seconds(self, times: Times, num_micro_batches: int | None = None) -> float:
        """Returns the seconds of the plan's step if its stages took other times, or it had other micro-batches."""
        count, step_s = num_micro_batches or self._plan.num_micro_batches, self._plan.step_s
        if self._shared or self._now <= 0:
            saved = self._work(self.times, self._plan.num_micro_batches) - self._work(times, count)
            return step_s - self._factor * saved
        return step_s * self._simulated(times, count) / self._now

    def slopes(self, changed: Sequence[Times]) -> FloatArray:
        """Returns, for each of K other times of the plan's stages, the derivative of the step's seconds when the times
        begin to change towards them, where 1 stands for the whole change; shape (K,).
        """
        plan = self._plan
        if self._shared or self._now <= 0:
            return np.array([self.seconds(times) - plan.step_s for times in changed])
        slopes = step_slopes(self.times, plan.num_micro_batches, plan.schedule, changed=changed)
        return slopes * (plan.step_s / self._now)

    def _simulated(self, times: Times, count: int) -> float:
        return step_seconds(times, count, self._plan.schedule)

    def _work(self, times: Times, count: int) -> float:
        """The seconds that the average device works."""
        total = 0.0
        for n, stage in enumerate(times):
            receiving = times[n - 1].forward_send_s if n else 0.0
            receiving += times[n + 1].backward_send_s if n + 1 < len(times) else 0.0
            once = stage.per_step_s
            total += stage.devices * (count * (stage.forward_s + stage.backward_s + receiving) + once)
        return total / sum(stage.devices for stage in times)


def plan_times(plan: Plan) -> Times:
    """Returns the times of a plan's stages; transfers, which it counts at the receiving stage, are the sender's."""
    return tuple(_times(plan.stages, n, plan.streams) for n in range(len(plan.stages)))


def _times(stages: Sequence[StagePlan], n: int, streams: bool) -> StageTimes:
    stage, before = stages[n], stages[n - 1]
    collective = min(stage.forward_collective_s, stage.forward_s)
    back = min(max(stage.collective_s - collective, 0.0), stage.backward_s)
    offload = StageOffload(stage.offloaded) if stage.offload is None else stage.offload
    return StageTimes(
        forward_s=stage.forward_s,
        backward_s=stage.backward_s,
        per_step_s=stage.per_step_s,
        forward_send_s=stages[n + 1].forward_boundary_s if n + 1 < len(stages) else 0.0,
        backward_send_s=max(before.boundary_s - before.forward_boundary_s, 0.0) if n else 0.0,
        forward_collective_s=collective,
        backward_collective_s=back,
        synchronisation_s=min(stage.synchronisation_s, stage.per_step_s),
        backward_weight_s=min(stage.backward_weight_s, stage.backward_s),
        devices=stage.submesh.num_devices,
        streams=streams,
        apart=stage.submesh.num_hosts > 1,
        forward_copies_s=min(offload.forward_s, collective),
        backward_copies_s=min(offload.backward_s, back),
        host_step_s=min(offload.step_s, max(stage.per_step_s - stage.synchronisation_s, 0.0)),
    )


def scaled(
    times: StageTimes,
    computing: float = 1.0,
    links: float = 1.0,
    sends: tuple[float, float] = (1.0, 1.0),
    once: float | None = None,
) -> StageTimes:
    """Returns a stage's times with its computing, collectives and transfers multiplied by these factors; what its hosts
    do, and copies to them, stay as they are.

    Args:
        times: the times of the stage.
        computing: the factor for operators and for the optimizer's update.
        links: the factor for collectives among its devices, and for the synchronisation of gradients.
        sends: the factors for its transfers to the next stage, and to the previous one.
        once: the factor for all that comes once a step; None: update and synchronisation have those above.
    """
    forward = (times.forward_collective_s - times.forward_copies_s) * links + times.forward_copies_s
    backward = (times.backward_collective_s - times.backward_copies_s) * links + times.backward_copies_s
    update = (times.per_step_s - times.synchronisation_s - times.host_step_s) * (computing if once is None else once)
    synchronisation = times.synchronisation_s * (links if once is None else once)
    return dataclasses.replace(
        times,
        forward_s=(times.forward_s - times.forward_collective_s) * computing + forward,
        backward_s=(times.backward_s - times.backward_collective_s) * computing + backward,
        per_step_s=update + synchronisation + times.host_step_s,
        forward_collective_s=forward,
        backward_collective_s=backward,
        synchronisation_s=synchronisation,
        backward_weight_s=times.backward_weight_s * computing,
        forward_send_s=times.forward_send_s * sends[0],
        backward_send_s=times.backward_send_s * sends[1],
    )


def shortened(times: StageTimes, forward_s: float, backward_s: float, update_s: float) -> StageTimes:
    """Returns a stage's times with so many seconds less in each part; what it computes can't go below 0."""
    backward_s = max(times.backward_s - backward_s, times.backward_collective_s)
    return dataclasses.replace(
        times,
        forward_s=max(times.forward_s - forward_s, times.forward_collective_s),
        backward_s=backward_s,
        backward_weight_s=min(times.backward_weight_s, backward_s),
        per_step_s=max(times.per_step_s - update_s, times.synchronisation_s + times.host_step_s),
    )
