"""The simulated time of a pipeline's step as the objective of a slicing, and lower bounds on it.

The closed form, all stages plus (B - 1) times the largest, is exact for stages that are alike and transfers that take
nothing. Elsewhere it may be over the step as well as under it, so it is no lower bound; `makespan_floor` is one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import Objective, SlicingProblem, StageChoice, checks
from alpa_dejavu.problem.run import ALPA_SCHEDULES
from alpa_dejavu.simulation.step import SENDS, StageTimes, step_seconds
from alpa_dejavu.slicing._least_floor import LeastFloor, Occupied

__all__ = ["Makespan", "least_makespan_floor", "makespan_floor"]

_ROUNDING = 1e-9


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Makespan(Objective):
    """An objective for slicers: the seconds of a step as `alpa_dejavu.simulation.step.simulate` gives them, transfers
    included.

    Of the seconds that `SlicingProblem.sites` gives for a transfer between stages, half are for the forward pass and
    half for the backward pass; in an "inference" schedule, all are for the forward pass. Without sites transfers take
    none. `per_step_s` is each stage's update.

    Attributes:
        forward_s: shape (L, L, S, C), the part of the problem's `costs_s` that is forward; in an "inference" schedule
            all of it is.
        schedule: "1f1b", "1f1b_overlap_friendly", "gpipe" or "inference".
        sends: "blocking", "buffered" or "overlapped", as `simulate` takes it.

    Raises ValueError for an unknown name, for NaN or negative seconds, and, when it meets a problem, for a shape that
    isn't that of its costs, and for a stage whose forward is more than all of it.

    >>> problem = SlicingProblem(
    ...     costs_s=np.full((2, 2, 1, 1), 3.0), submesh_sizes=np.array([1]), num_devices=2, num_micro_batches=8,
    ...     objective=Makespan(np.full((2, 2, 1, 1), 1.0)),
    ... )
    >>> problem.total_s((StageChoice(0, 0, 0, 0), StageChoice(1, 1, 0, 0)))
    27.0
    """

    forward_s: NDArray[np.float64]
    schedule: str = "1f1b"
    sends: str = "blocking"

    def __post_init__(self) -> None:
        object.__setattr__(self, "forward_s", np.asarray(self.forward_s, dtype=np.float64))
        checks.one_of("makespan", "schedule", self.schedule, ALPA_SCHEDULES)
        checks.one_of("makespan", "sends", self.sends, SENDS)
        if not (self.forward_s >= 0).all():
            raise ValueError("makespan: forward_s has NaN or negative entries")

    def __repr__(self) -> str:
        return f"Makespan(schedule={self.schedule!r}, sends={self.sends!r})"

    def total_s(self, problem: SlicingProblem, stages: tuple[StageChoice, ...]) -> float:
        """Returns the simulated seconds of a training step (or inference step) of a pipeline with the given stages."""
        return step_seconds(self.stage_times(problem, stages), problem.num_micro_batches, self.schedule, self.sends)

    def stage_times(self, problem: SlicingProblem, stages: Sequence[StageChoice]) -> tuple[StageTimes, ...]:
        """Returns the times of each stage of a plan, as the simulation of a step needs them.

        Raises:
            ValueError: `forward_s` has another shape than the problem's costs, or is more than they are.
        """
        if self.forward_s.shape != problem.costs_s.shape:
            raise ValueError(f"makespan: forward_s is {self.forward_s.shape}, but costs_s is {problem.costs_s.shape}")
        crossed = [*_crossed(problem, stages), 0.0]
        ahead, back = (1.0, 0.0) if self.schedule == "inference" else (0.5, 0.5)
        return tuple(
            StageTimes(
                *self._parts(problem, stage),
                per_step_s=problem.stage_once_s(stage),
                forward_send_s=ahead * crossed[n + 1],
                backward_send_s=back * crossed[n],
                devices=int(problem.submesh_sizes[stage.submesh]),
            )
            for n, stage in enumerate(stages)
        )

    def _parts(self, problem: SlicingProblem, stage: StageChoice) -> tuple[float, float]:
        """Returns a stage's seconds forward and backward."""
        forward, cost = float(self.forward_s[stage.entry]), float(problem.costs_s[stage.entry])
        entry = f"makespan: forward_s{stage.entry} is {forward}, but costs_s there is {cost}"
        if forward > cost * (1 + _ROUNDING):
            raise ValueError(f"{entry}; give the part of it that is forward")
        if self.schedule == "inference" and forward < cost * (1 - _ROUNDING):
            raise ValueError(f"{entry}; in an inference schedule nothing else is done, so give all of it")
        return forward, max(cost - forward, 0.0)


def makespan_floor(problem: SlicingProblem, stages: Sequence[StageChoice]) -> float:
    """Returns a lower bound, in seconds, on a plan's step under any schedule: the largest, over all stages, of the sum
    of the stages before a stage plus B times the stage itself, for B micro-batches.

    Before a stage begins, a micro-batch has gone forward through all stages before it, and after it ends one has to go
    back through them. Meanwhile it works on each of B micro-batches, one after the other. The transfer to a stage
    counts as the problem's `Makespan` sends it: "blocking" holds the stage up each time; otherwise it only takes the
    link's time, one micro-batch after the other, which also holds where the objective is no `Makespan`. What the first
    stage takes once a step comes last of all.

    Args:
        problem: a slicing problem with any objective; an "inference" schedule only goes forward.
        stages: stages that the problem allows, in the order of the layers.

    Returns:
        Seconds.
    """
    occupied = _occupied(problem)
    floor = before = 0.0
    for n, (stage, crossed) in enumerate(zip(stages, _crossed(problem, stages), strict=True)):
        cost = float(problem.costs_s[stage.entry])
        once = problem.stage_once_s(stage) if n == 0 and not occupied.ahead_only else 0.0
        floor = max(floor, before + once + float(occupied.seconds(cost, crossed)))
        before += once + cost + crossed
    return floor


def least_makespan_floor(problem: SlicingProblem, *, most_work: int = 30_000_000, most_places: int = 5_000) -> float:
    """Returns a lower bound, in seconds, on the step of any plan: the least `makespan_floor` of all plans, or a little
    less.

    That of one plan is the largest, over its stages, of the stages before plus all micro-batches of the stage itself.
    The least is found by halving: whether there is a plan within a threshold is asked of a dynamic program that keeps,
    for each layer and number of devices in use, the least sum of stages before. That is as exact as 1e-6, unless there
    are too many states. Then some distinctions are left out, so that the result is less, but still a bound: which kind
    of host a device is of (but for how fast it is), which stage a transfer comes from (the fastest counts), and how
    many stages may follow for memory's sake, or are asked for.

    Args:
        problem: a slicing problem with any objective.
        most_work: the most sums for one threshold, which take less than a second; a distinction that takes more is left
            out.
        most_places: the most combinations of devices of each kind of host in use; with more, kinds are told apart only
            by a weight that follows their speed.

    Returns:
        Seconds; infinite if there is no plan.
    """
    return LeastFloor(problem, _occupied(problem), most_work, most_places).find()


def _occupied(problem: SlicingProblem) -> Occupied:
    """Returns the rule of the problem's makespan; if it has none, one that holds for every way of sending."""
    objective = problem.objective
    if isinstance(objective, Makespan):
        blocking, ahead_only = objective.sends == "blocking", objective.schedule == "inference"
        return Occupied(problem.num_micro_batches, blocking, ahead_only)
    return Occupied(problem.num_micro_batches, blocking=False, ahead_only=objective == "inference")


def _crossed(problem: SlicingProblem, stages: Sequence[StageChoice]) -> list[float]:
    """Returns the seconds of the way to each stage from the one before, there and back."""
    if problem.sites is None:
        return [0.0] * len(stages)
    pairs = itertools.pairwise(stages)
    return [0.0, *(problem.sites.crossing(after.first, before.submesh, after.submesh) for before, after in pairs)]
