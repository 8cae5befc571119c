"""A branch-and-bound over bounds on the largest stage cost, for any search that answers for one bound.

Let F(m) be the least sum of stage costs when no stage costs more than m. A slicing whose largest stage costs m costs
F(m) + (B-1) m at least, and F falls as m grows. So between two bounds a < b nothing costs less than F(b) + (B-1) a:
most bounds need no search at all.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import SlicingProblem, StageChoice

ROUNDING = 1e-12
"""Two sums of the same stages in another order differ by less than this fraction."""

BoundedAnswer = tuple[float, tuple[StageChoice, ...]]
"""A lower bound on the sums of slicings within a bound on stages, and a slicing, or ()."""
Solve = Callable[[float, float, float], BoundedAnswer]


def at_least_s(problem: SlicingProblem, bound: float, least: float) -> float:
    """Returns the least that a slicing may cost whose largest stage costs `bound` or more, and whose stages' weights
    (what the objective sums over stages) have the sum `least` or more.
    """
    if problem.objective == "inference":
        return least * bound
    if problem.objective == "work":
        return least
    return least + (problem.num_micro_batches - 1) * bound


def spare(problem: SlicingProblem, bound: float, total: float) -> float:
    """Returns the sum of stages' weights from which on a slicing costs at least `total`, if its largest stage costs
    `bound` or more.
    """
    if problem.objective == "inference":
        return total / bound if bound > 0 else math.inf
    if problem.objective == "work":
        return total
    return total - (problem.num_micro_batches - 1) * bound


@final
class BranchAndBound:
    """A best-first search for the cheapest slicing, over intervals of the bound on what the largest stage costs, each
    with a lower bound on all slicings whose largest stage costs something inside it.

    Args:
        problem: the slicing problem.
        solve: a function that searches within one bound. It gets the bound, the summed stage weight from which on a
            slicing is of no use, and that from which on one with a stage as dear as the bound is.
        bounds: the costs, ascending, that the largest stage may have.
        floors: where each of `bounds` stands for several close costs, the least of those; None: each is one cost.
        limit_s: slicings that cost so much or more aren't looked for.
        slack: nor are those that are less than this fraction better than the best, or than what a bound left open.
        relaxed: whether `solve` only gives lower bounds, and never finds a slicing.
    """

    def __init__(
        self,
        problem: SlicingProblem,
        solve: Solve,
        bounds: NDArray[np.float64],
        floors: NDArray[np.float64] | None = None,
        limit_s: float = math.inf,
        slack: float = 0.0,
        relaxed: bool = False,
    ) -> None:
        self._problem, self._solver, self._bounds, self._relaxed = problem, solve, bounds, relaxed
        self._floors = bounds if floors is None else floors
        self._best: tuple[StageChoice, ...] = ()
        self._best_s, self._open_s, self._slack = limit_s, math.inf, slack
        self._rounds = 0

    def run(self, go_on: Callable[[], bool] = lambda: True) -> tuple[tuple[StageChoice, ...], float, int]:
        """Returns the best slicing, a lower bound on any slicing's cost, and how many bounds were solved.

        The search stops early once `go_on()` is false; the bound may then be lower.
        """
        top = len(self._bounds) - 1
        least = self._solve(top, 0)
        intervals = [(self._floor(0, least), 0, top - 1, least)] if top and math.isfinite(least) else []
        while intervals and intervals[0][0] < min(self._best_s, self._open_s) * (1 - self._slack) and go_on():
            _, low, high, least = heapq.heappop(intervals)
            middle = (low + high) // 2
            within = self._solve(middle, low)
            for a, b, at_least in ((low, middle - 1, within), (middle + 1, high, least)):
                if a <= b and not math.isinf(at_least):
                    heapq.heappush(intervals, (self._floor(a, at_least), a, b, at_least))
        certain = min([self._open_s, *(floor for floor, *_ in intervals[:1])])
        return self._best, self._best_s if certain >= self._best_s * (1 - ROUNDING) else certain, self._rounds

    def _useless(self, low: int) -> float:
        """Returns the sum from which on nothing from bound `low` on is better than the best so far."""
        enough_s = min(self._best_s, self._open_s) if self._relaxed else self._best_s
        return spare(self._problem, float(self._floors[low]), enough_s)

    def _floor(self, low: int, least: float) -> float:
        return at_least_s(self._problem, float(self._floors[low]), least)

    def _solve(self, index: int, low: int) -> float:
        """Returns F at a bound, or less; keeps the slicing that it belongs to if it is the best so far."""
        self._rounds += 1
        least, stages = self._solver(float(self._bounds[index]), self._useless(low), self._useless(index))
        if stages:
            total = self._problem.total_s(stages)
            if total < self._best_s:
                self._best, self._best_s = stages, total
        self._open_s = min(self._open_s, self._floor(index, least))
        return least
