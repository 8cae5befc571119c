"""The search over (layers, which hosts): a branch-and-bound over bounds on the largest stage cost, with beams.

Each bound is first relaxed, then searched with a beam. What the beams may have missed is known; while that is worth it
they get wider, until nothing was missed or the effort is spent.
"""

from __future__ import annotations

import math
import sys
from typing import final

import numpy as np

from alpa_dejavu.problem import Sites, SlicingProblem, StageChoice
from alpa_dejavu.slicing._beam import Beam
from alpa_dejavu.slicing._branch import ROUNDING, Answer, BranchAndBound
from alpa_dejavu.slicing._choices import Choices, FloatArray
from alpa_dejavu.slicing._effort import Effort
from alpa_dejavu.slicing._relaxed import ENTRIES, Relaxation

NOT_FAR = (1.1, 2.0, math.inf)
"""A slicing is first looked for that costs at most so many times as much as the relaxed problem."""
SHARE = 0.25
"""The share of the effort for the relaxed problem, and for each of these but the last, which may take all of it."""
CLOSE = 5e-3
"""The wider beams' business is what is less than this fraction better."""


def placed(problem: SlicingProblem, sites: Sites, effort: Effort) -> tuple[tuple[StageChoice, ...], float, int]:
    """Returns the best slicing found (cut of layers into stages) on hosts of unlike kinds, a lower bound on the cost of
    all, and how many bounds on the largest stage's cost were tried.

    Args:
        problem: the slicing problem.
        sites: the hosts that its submeshes may be on.
        effort: the limits on the search's work.
    """
    choices = Choices(problem, sites)
    bounds, floors = choices.bounds(effort.most_bounds, effort.buckets_per_e)
    if not len(bounds):
        return (), math.inf, 0
    search = _Search(choices, effort)

    def branch(width: int, limit_s: float, slack: float, work: float) -> tuple[tuple[StageChoice, ...], float]:
        search.begin(width, work)
        bounded = BranchAndBound(problem, search.solve, bounds, floors, limit_s, slack, relaxed=width == 0)
        stages, at_least, _ = bounded.run(search.may_go_on)
        return stages, at_least

    if search.is_little:
        best, at_least = branch(sys.maxsize, math.inf, ROUNDING, math.inf)
        return best, at_least, search.rounds
    best, relaxed_s = branch(0, math.inf, CLOSE, SHARE * effort.work)
    at_least = relaxed_s
    for factor in NOT_FAR:
        if not best and math.isfinite(at_least):
            work = effort.work * (SHARE if math.isfinite(factor) else 1.0)
            limit_s = relaxed_s * factor if relaxed_s > 0 else math.inf
            best, certain = branch(effort.widths[0], limit_s, CLOSE, work)
            at_least = max(at_least, certain)
    for width in effort.widths[1:]:
        best_s = problem.total_s(best) if best else math.inf
        if at_least < best_s and search.spent < effort.work:
            better, certain = branch(width, best_s, ROUNDING, effort.work - search.spent)
            best, at_least = better or best, max(at_least, certain)
    return best, at_least, search.rounds


@final
class _Search:
    """A search within one bound, first by prices, then by a beam; what it learns of prices it keeps."""

    def __init__(self, choices: Choices, effort: Effort) -> None:
        self._choices, self._effort = choices, effort
        self._prices: FloatArray = np.zeros(len(choices.available))
        states = choices.num_groups * float(np.prod(choices.available + 1.0))
        self.is_little = states * choices.costs_s.size <= effort.few_states
        self.rounds, self.spent = 0, 0.0
        self.begin(0, math.inf)

    def begin(self, width: int, work: float) -> None:
        """Begins another search, with a beam search that keeps `width` partial slicings (0: none) and a limit on its
        work.
        """
        self._width, self._enough = width, self.spent + work

    def may_go_on(self) -> bool:
        """Returns whether some of the search's limit on work is left."""
        return self.spent < self._enough

    def solve(self, bound: float, below: float, here: float) -> Answer:
        """Returns a lower bound on the summed weights of slicings whose stages cost at most `bound`, and a slicing.

        The slicing is () unless one with a sum below `below` is found. It isn't searched for if only sums below `here`
        are of use for a slicing with a stage as dear as `bound`, and there are none: others are found at lower bounds.
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
        if self._width == 0 or (relaxed.value >= here and not self.is_little):
            return relaxed.value, ()
        beam = Beam(self._choices, bound, relaxed, below, self._width, self._enough - self.spent)
        least, stages = beam.run()
        self.spent += beam.work
        return max(least, relaxed.value), stages
