"""The exact slicer: a search over bounds on the largest stage cost, with prices and dynamic programming for each.

Let F(m) be the least sum of stage costs when no stage costs more than m. Of the slicings whose largest stage costs
between a and b none costs less than F(b) + (B-1) a, and less may be known than F(b). Where a slicing has the sum F(b),
and its largest stage costs m, nothing between m and b costs less than it does. Intervals of m are searched, the most
promising first.

Where stages are placed on hosts of unlike kinds there may be more states than can be looked at; then the answer says
what it may have missed.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import sys
import time
from typing import final

import numpy as np

from alpa_dejavu.problem import Sites, Slicing, SlicingProblem, StageChoice
from alpa_dejavu.slicing._base import Effort, Slicer, best_of_families, check_has_recurrence
from alpa_dejavu.slicing._baselines import Uniform
from alpa_dejavu.slicing._beam import Beam
from alpa_dejavu.slicing._bounded import BoundedSearch
from alpa_dejavu.slicing._branch import ROUNDING, BoundedAnswer, BranchAndBound, at_least_s, spare
from alpa_dejavu.slicing._choices import Choices, FloatArray
from alpa_dejavu.slicing._relaxed import ENTRIES, Relaxation
from alpa_dejavu.slicing.kept_slicings import KeptSlicings


@final
@dataclasses.dataclass(frozen=True)
class Dynamic(Slicer):
    """The default slicer, which cuts layers into stages by an exact dynamic program, in float64; of equally cheap
    slicings it always takes the same one.

    On hosts of unlike kinds it is exact as long as the limits of `effort` allow it; if not, `Slicing.gap` tells how
    much may be left to win. On alike hosts it is always exact, but for problems in which memory limits, or transfers
    that depend on the stage before, matter on so many devices that tables would take gigabytes: then it may find
    nothing better than equal stages, and tells a gap. `kept` has answers from before, and gets others; None: each
    problem is solved. On hosts of unlike kinds it looks for no slicings that cost `limit_s` seconds or more.

    References:
        Zheng et al., Alpa, OSDI 2022, section 5.2: the recurrence. The search over bounds is this package's own.
        Handler and Zang, A dual algorithm for the constrained shortest path problem, Networks 10, 1980: the prices of
            devices, by which unlike hosts are sliced.
    """

    effort: Effort = dataclasses.field(default=Effort(), repr=False)
    kept: KeptSlicings | None = dataclasses.field(default=None, repr=False, compare=False)
    limit_s: float = dataclasses.field(default=math.inf, repr=False)

    def within(self, limit_s: float, share: float = 1.0) -> Dynamic:
        """Returns the slicer that needn't find slicings of so many seconds or more, on hosts of unlike kinds, and does
        a share of the work at most.
        """
        effort = dataclasses.replace(self.effort, work=int(share * self.effort.work))
        return dataclasses.replace(self, effort=effort, limit_s=limit_s)

    def slice(self, problem: SlicingProblem) -> Slicing:
        if self.kept is None:
            return self._solved(problem)
        limits = (self.effort.work, self.limit_s) if math.isfinite(self.limit_s) else ()
        return self.kept.of(problem, self._solved, limits)

    def _solved(self, problem: SlicingProblem, less_than_s: float = math.inf) -> Slicing:
        """Returns the best slicing, which need not be found if it takes `less_than_s` or more."""
        started = time.perf_counter()
        check_has_recurrence("dynamic", problem)
        if problem.families is not None:
            return best_of_families(self._solved, problem)
        sites, stages, at_least, rounds = problem.sites, tuple[StageChoice, ...](), 0.0, 0
        if sites is None or sites.uses.shape[1] == 1:
            # Where submeshes fit on hosts in any mixture, the best stages are often few enough to do so.
            uncrowded = problem if sites is None else dataclasses.replace(problem, sites=sites.without_capacity())
            stages, at_least, rounds = Intervals(uncrowded, self.effort, less_than_s).run()
            if not stages and math.isfinite(at_least) and math.isinf(less_than_s):
                stages = Uniform().slice(problem).stages
        if sites is not None and not sites.alike and not math.isfinite(problem.total_s(stages)):
            stages, at_least, rounds = placed(problem, sites, self.effort, min(self.limit_s, less_than_s))
        return Slicing.of(problem, stages, at_least, rounds, time.perf_counter() - started)


CLOSE, FARTHER, FAR = 0.05, 4.0, 6
"""A slicing is first looked for that costs at most such a fraction more than an interval's floor; then one so many
times as far; after so many times one at any cost."""
WIDE = 1.0
"""An interval is halved as long as its bounds make a difference of more than this times what is searched for above its
floor."""


@final
class Intervals:
    """A best-first search for the cheapest slicing, over intervals of what the largest stage may cost, each bounded by
    a lower bound on the stages' summed weights. It finds only one that costs less than `less_than_s`.
    """

    def __init__(self, problem: SlicingProblem, effort: Effort, less_than_s: float = math.inf) -> None:
        self._problem, self._bounded = problem, BoundedSearch(problem, effort)
        self._bounds = self._bounded.bounds
        self._best: tuple[StageChoice, ...] = ()
        self._best_s, self._left_open_s, self._rounds = less_than_s, math.inf, 0
        self._open: list[tuple[float, int, int, float, int]] = []

    def run(self) -> tuple[tuple[StageChoice, ...], float, int]:
        """Returns the best slicing, a lower bound on any slicing's cost, and how many bounds were tried."""
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


NOT_FAR = (1.1, 2.0, math.inf)
"""A slicing is first looked for that costs at most so many times as much as the relaxed problem."""
SHARE = 0.25
"""The share of the effort for the relaxed problem, and for each of these but the last, which may take all of it."""
BETTER = 5e-3
"""The wider beams' business is what is less than this fraction better."""


def placed(
    problem: SlicingProblem, sites: Sites, effort: Effort, limit_s: float = math.inf
) -> tuple[tuple[StageChoice, ...], float, int]:
    """Returns the best slicing found on hosts of unlike kinds, a lower bound on the cost of all, and how many bounds on
    the largest stage's cost were tried. `sites` are the hosts that submeshes may be on; slicings that cost `limit_s` or
    more aren't looked for.
    """
    choices = Choices.of(problem, sites)
    bounds, floors = choices.bounds(effort.most_bounds, effort.buckets_per_e)
    if not len(bounds):
        return (), math.inf, 0
    search = _PlacedSearch(choices, effort)

    def branch(width: int, limit_s: float, slack: float, work: float) -> tuple[tuple[StageChoice, ...], float]:
        search.begin(width, work)
        bounded = BranchAndBound(problem, search.solve, bounds, floors, limit_s, slack, relaxed=width == 0)
        stages, at_least, _ = bounded.run(search.may_go_on)
        return stages, at_least

    if search.is_little:
        best, at_least = branch(sys.maxsize, limit_s, ROUNDING, math.inf)
        return best, at_least, search.rounds
    best, relaxed_s = branch(0, limit_s, BETTER, SHARE * effort.work)
    at_least = relaxed_s
    for factor in NOT_FAR:
        if not best and at_least < limit_s:
            work = effort.work * (SHARE if math.isfinite(factor) else 1.0)
            far_s = min(relaxed_s * factor, limit_s) if relaxed_s > 0 else limit_s
            best, certain = branch(effort.widths[0], far_s, BETTER, work)
            at_least = max(at_least, certain)
    for width in effort.widths[1:]:
        best_s = problem.total_s(best) if best else limit_s
        if at_least < best_s and search.spent < effort.work:
            better, certain = branch(width, best_s, ROUNDING, effort.work - search.spent)
            best, at_least = better or best, max(at_least, certain)
    return best, at_least, search.rounds


@final
class _PlacedSearch:
    """A search within one bound, first by prices, then by a beam; what it learns of prices it keeps."""

    def __init__(self, choices: Choices, effort: Effort) -> None:
        self._choices, self._effort = choices, effort
        self._prices: FloatArray = np.zeros(len(choices.available))
        states = choices.num_groups * float(np.prod(choices.available + 1.0))
        self.is_little = states * choices.costs_s.size <= effort.few_states
        self.rounds, self.spent = 0, 0.0
        self.begin(0, math.inf)

    def begin(self, width: int, work: float) -> None:
        """Begins another search, with a beam of `width` partial slicings (0: none) and a limit on its work."""
        self._width, self._enough = width, self.spent + work

    def may_go_on(self) -> bool:
        return self.spent < self._enough

    def solve(self, bound: float, below: float, useful: float) -> BoundedAnswer:
        """Returns a lower bound on the summed weights of slicings whose stages cost at most `bound`, and a slicing.

        The slicing is () unless one with a sum below `below` is found. It isn't searched for if only sums below
        `useful` are of use for a slicing with a stage as dear as `bound`, and there are none: others are found at lower
        bounds.
        """
        self.rounds += 1
        steps = 0 if self.is_little else self._effort.steps
        relaxation = Relaxation(self._choices, bound, self._effort.most_entries)
        relaxed = relaxation.tightened(below, self._prices, steps)
        self.spent += relaxation.work / ENTRIES
        if relaxed.value >= below or math.isinf(relaxed.value):
            return relaxed.value, ()
        self._prices = relaxed.prices
        # Slicings with lesser stage costs are found at lower bounds.
        if self._width == 0 or (relaxed.value >= useful and not self.is_little):
            return relaxed.value, ()
        beam = Beam(self._choices, bound, relaxed, below, self._width, self._enough - self.spent)
        least, stages = beam.run()
        self.spent += beam.work
        return max(least, relaxed.value), stages
