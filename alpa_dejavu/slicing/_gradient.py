"""The slicer that goes down a gradient: plans relaxed to probabilities, annealed, recovered and polished."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, final

from alpa_dejavu.problem import Slicing, SlicingProblem, StageChoice, checks
from alpa_dejavu.slicing._base import Slicer, best_of_families
from alpa_dejavu.slicing.relaxation import Cost

if TYPE_CHECKING:
    from alpa_dejavu.slicing.relaxation._solve import AnnealEnd, Trace


@final
@dataclasses.dataclass(frozen=True)
class Gradient(Slicer):
    """A slicer, which cuts layers into stages by annealing a differentiable dynamic program over layers from many
    starts at once; needs JAX.

    By the objectives that have a name, devices are priced and the largest stage is bounded; prices and bounds follow
    the gradient. By any other cost, and by the simulated step (`alpa_dejavu.slicing.makespan.Makespan`), a second
    program has one place for each stage of a plan, with preferences for its choices and its last layer; preferences
    follow the gradient of the relaxed plan's cost. Plans are drawn from the resulting probabilities, their stages are
    recombined, and the best plans are moved as long as that makes them better. No other slicer is asked.

    With the default objective it is experimental: no better than `dynamic`, in more time, in docs/results/slicers.md.
    On simulated steps over unlike links its plans are better there than those by the default objective.

    The lower bound is the Lagrangian relaxation's, or on a `Makespan` `least_makespan_floor`; on another objective 0.
    The first problem of a shape takes seconds longer, for its programs are compiled. Alpa's 1F1B with sends that block
    is differentiated event by event; other schedules are relaxed as if they were that, and plans compared as they are.

    Attributes:
        starts: how many random starts there are.
        rounds: how many temperatures the anneal has.
        seed: the seed of starts and draws. The same seed gives the same plan.
        cost: a function that gives the seconds of a relaxed plan, by which plans are then compared in place of the
            problem's objective. It is compiled for each function that is given: give the same one again.
        polish: whether the plans that were recovered are moved to better ones.
        plans: other plans that are polished, too, as the dynamic program's. Those that aren't allowed are left out.

    Raises ValueError for numbers that aren't whole, or below 1.

    References:
        Mensch and Blondel, Differentiable Dynamic Programming for Structured Prediction and Attention, ICML 2018.
        Liu et al., DARTS: Differentiable Architecture Search, ICLR 2019.

    >>> Gradient(starts=8)
    Gradient(starts=8, rounds=24, seed=0, cost=None, polish=True)
    """

    starts: int = 16
    rounds: int = 24
    seed: int = 0
    cost: Cost | None = None
    polish: bool = True
    plans: tuple[tuple[StageChoice, ...], ...] = dataclasses.field(default=(), repr=False)

    def __post_init__(self) -> None:
        for field in ("starts", "rounds"):
            checks.count("gradient", field, getattr(self, field))

    def slice(self, problem: SlicingProblem) -> Slicing:
        if problem.families is not None:
            return best_of_families(lambda family, _: self.slice(family), problem)
        return self._solved(problem)[0]

    def traced(self, problem: SlicingProblem) -> tuple[Slicing, Trace | None]:
        """Solves a slicing problem, and returns the slicing and the anneal's trace: the relaxed plan's probabilities
        and costs, round by round; None if there is no plan at all.
        """
        from alpa_dejavu.slicing.relaxation._solve import trace

        slicing, ended = self._solved(problem)
        return slicing, None if ended is None else trace(ended, slicing.cost_s)

    def _solved(self, problem: SlicingProblem) -> tuple[Slicing, AnnealEnd | None]:
        from alpa_dejavu.slicing.relaxation._solve import solve

        started = time.perf_counter()
        plans = tuple(plan for plan in self.plans if plan)
        stages, lower_bound_s, ended = solve(
            problem, starts=self.starts, rounds=self.rounds, seed=self.seed, cost=self.cost, polish=self.polish,
            plans=plans,
        )  # fmt: skip
        return Slicing.of(problem, stages, lower_bound_s, self.rounds, time.perf_counter() - started), ended
