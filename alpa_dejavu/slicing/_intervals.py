"""The search over bounds on the largest stage cost: interval by interval, the most promising first.

Let F(m) be the least sum of stage costs when no stage costs more than m. Of the slicings whose largest stage costs
between a and b none costs less than F(b) + (B-1) a, and less may be known than F(b). Where a slicing has the sum F(b),
and its largest stage costs m, nothing between m and b costs less than it does.
"""

from __future__ import annotations

import heapq
import math
from typing import final

import numpy as np

from alpa_dejavu.problem import SlicingProblem, StageChoice
from alpa_dejavu.slicing._bounded import BoundedSearch
from alpa_dejavu.slicing._branch import ROUNDING, at_least_s, spare
from alpa_dejavu.slicing._effort import Effort

CLOSE, FARTHER, FAR = 0.05, 4.0, 6
"""A slicing is first looked for that costs at most such a fraction more than an interval's floor; then one so many
times as far; after so many times one at any cost."""
WIDE = 1.0
"""An interval is halved as long as its bounds make a difference of more than this times what is searched for above its
floor."""


@final
class Intervals:
    """A best-first search for the cheapest slicing (cut of layers into stages), over intervals of what the largest
    stage may cost. A lower bound on the stages' summed weights, what an objective sums over stages, bounds each
    interval.
    """

    def __init__(self, problem: SlicingProblem, effort: Effort) -> None:
        self._problem, self._bounded = problem, BoundedSearch(problem, effort)
        self._bounds = self._bounded.bounds
        self._best: tuple[StageChoice, ...] = ()
        self._best_s, self._left_open_s, self._rounds = math.inf, math.inf, 0
        self._open: list[tuple[float, int, int, float, int]] = []

    def run(self) -> tuple[tuple[StageChoice, ...], float, int]:
        """Returns the best slicing, a lower bound on any slicing's cost, and how many bounds on the largest stage were
        tried.
        """
        if not len(self._bounds):
            return (), math.inf, 0
        top = len(self._bounds) - 1
        if self._bounded.is_little:
            self._solve(0, top, math.inf, 0)
        else:
            self._push(0, top, self._relaxed(top), 0)
        while self._open and self._open[0][0] < self._best_s * (1 - ROUNDING):
            floor, low, high, least, tries = heapq.heappop(self._open)
            # It is harder than prices tell: perhaps there is nothing to be found.
            if tries and not self._best and not self._bounded.possible:
                return (), math.inf, self._rounds
            aim = min(self._best_s, floor * (1 + CLOSE * FARTHER**tries) if tries < FAR else math.inf)
            middle = (low + high) // 2
            if self._bounded.is_little:
                self._solve(low, middle, math.inf, tries)
                self._push(middle + 1, high, least, tries)
            elif self._floor(high, least) - floor > WIDE * (aim - floor):
                below = spare(self._problem, float(self._bounds[middle]), aim)
                within = self._relaxed(middle, spare(self._problem, float(self._bounds[low]), self._best_s), below)
                self._push(low, middle, max(within, least), tries)
                self._push(middle + 1, high, least, tries)
            else:
                self._solve(low, high, aim, tries)
        return self._best, min(self._best_s, self._left_open_s), self._rounds

    def _relaxed(self, index: int, enough: float = math.inf, below: float = -math.inf) -> float:
        self._rounds += 1
        return self._bounded.relaxed(float(self._bounds[index]), enough, below)

    def _solve(self, low: int, high: int, aim: float, tries: int) -> None:
        """Looks for a slicing between two bounds that costs less than `aim`; opens what it leaves."""
        self._rounds += 1
        below = spare(self._problem, float(self._bounds[low]), min(aim, self._best_s))
        least, stages = self._bounded.solve(float(self._bounds[high]), below)
        if stages:
            total = self._problem.total_s(stages)
            if total < self._best_s:
                self._best, self._best_s = stages, total
            largest = max(self._problem.stage_costs_s(stages))
            self._push(low, int(np.searchsorted(self._bounds, largest)) - 1, least, tries)
        elif least >= below:
            self._push(low, high, least, tries + 1)
        else:
            self._left_open_s = min(self._left_open_s, self._floor(low, least))

    def _push(self, low: int, high: int, least: float, tries: int) -> None:
        """Opens an interval, unless there is nothing in it, or nothing better than the best so far."""
        if low <= high and self._floor(low, least) < self._best_s:
            heapq.heappush(self._open, (self._floor(low, least), low, high, least, tries))

    def _floor(self, index: int, least: float) -> float:
        return at_least_s(self._problem, float(self._bounds[index]), least)
