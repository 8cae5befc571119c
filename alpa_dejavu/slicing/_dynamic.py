"""The exact slicer: dynamic programming for a bound on the largest stage cost, and a branch-and-bound over the bounds.

Let F(m) be the least sum of stage costs when no stage costs more than m. A slicing whose largest stage costs m costs
F(m) + (B-1) m at least, and F falls as m grows. So between two bounds a < b nothing costs less than F(b) + (B-1) a:
most bounds need no dynamic programming at all.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import SlicingProblem, StageChoice
from alpa_dejavu.slicing._base import Slicer
from alpa_dejavu.slicing._bounded import BoundedSearch


@final
@dataclasses.dataclass(frozen=True)
class Dynamic(Slicer):
    """Exact, in float64; of slicings that cost the same it always takes the same one.

    References:
        Zheng et al., Alpa, OSDI 2022, section 5.2: the recurrence. The search over bounds is this module's own.
    """

    def _search(self, problem: SlicingProblem) -> tuple[tuple[StageChoice, ...], float, int]:
        bounded = BoundedSearch(problem)
        bounds = bounded.bounds
        if not len(bounds):
            return (), math.inf, 0
        return _BranchAndBound(problem, bounded, bounds).run()


@final
class _BranchAndBound:
    """Best-first over intervals of bounds, by what nothing inside costs less than."""

    def __init__(self, problem: SlicingProblem, bounded: BoundedSearch, bounds: NDArray[np.float64]) -> None:
        self._problem, self._bounded, self._bounds = problem, bounded, bounds
        self._best: tuple[StageChoice, ...] = ()
        self._best_s, self._rounds = math.inf, 0

    def run(self) -> tuple[tuple[StageChoice, ...], float, int]:
        """The best slicing, its cost, and how many dynamic programs were solved."""
        top = len(self._bounds) - 1
        least = self._solve(top)
        if math.isinf(least):
            return (), math.inf, self._rounds
        intervals = [(self._floor(0, least), 0, top - 1, least)]
        while intervals:
            floor, low, high, least = heapq.heappop(intervals)
            if floor >= self._best_s:
                break
            middle = (low + high) // 2
            within = self._solve(middle)
            for a, b, at_least in ((low, middle - 1, within), (middle + 1, high, least)):
                if a <= b and not math.isinf(at_least):
                    heapq.heappush(intervals, (self._floor(a, at_least), a, b, at_least))
        return self._best, self._best_s, self._rounds

    def _floor(self, low: int, least: float) -> float:
        """What nothing from bound `low` on costs less than, if no sum there is below `least`."""
        if low >= len(self._bounds):
            return math.inf
        bound = float(self._bounds[low])
        if self._problem.objective == "inference":
            return least * bound
        if self._problem.objective == "work":
            return least
        return least + (self._problem.num_micro_batches - 1) * bound

    def _solve(self, index: int) -> float:
        """F at a bound; keeps the slicing that it belongs to if it is the best so far."""
        self._rounds += 1
        least, stages = self._bounded.solve(float(self._bounds[index]))
        if stages:
            total = self._problem.total_s(stages)
            if total < self._best_s:
                self._best, self._best_s = stages, total
        return least
