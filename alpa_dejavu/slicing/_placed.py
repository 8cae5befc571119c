"""The search over (layers, which hosts): a branch-and-bound over bounds on the largest stage cost, with beams.

Each bound is first relaxed, then searched with a beam. What the beams may have missed is known; while that is worth it
they get wider, until nothing was missed or the effort is spent.
"""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np

from alpa_dejavu.problem import Sites, SlicingProblem, StageChoice
from alpa_dejavu.slicing._beam import Beam
from alpa_dejavu.slicing._branch import ROUNDING, Answer, BranchAndBound
from alpa_dejavu.slicing._choices import Choices, FloatArray
from alpa_dejavu.slicing._relaxed import Relaxation

FEW_STATES = 500
"""With so few combinations of used devices and last site prices help less than they cost."""
NOT_FAR = (1.05, 1.3, 3.0, math.inf)
"""First a slicing is looked for that costs at most so much more than the relaxed problem."""
CLOSE = 5e-3
"""The wider beams' business is what is less than this fraction better."""

ENTRIES = 300
"""So many entries of the relaxation's arrays are looked at in the time of one beginning."""


@final
@dataclasses.dataclass(frozen=True)
class Effort:
    """How far a placed search goes; counted, not timed, so that the same problem always gets the same answer.

    Attributes:
        widths: of the beams: one search after the other, while there is something to win.
        steps: for the prices at each bound.
        work: how many beginnings of slicings are made, or what takes as long, at most; a million takes about half a
            second.
    """

    widths: tuple[int, ...] = (64, 256, 2048)
    steps: int = 60
    work: int = 10_000_000


def placed(problem: SlicingProblem, sites: Sites, effort: Effort) -> tuple[tuple[StageChoice, ...], float, int]:
    """The best slicing found, what none costs less than, and how many bounds were looked at."""
    choices = Choices(problem, sites)
    bounds, floors = choices.bounds()
    if not len(bounds):
        return (), math.inf, 0
    search = _Search(choices, effort)

    def branch(width: int, limit_s: float, slack: float) -> tuple[tuple[StageChoice, ...], float]:
        search.width = width
        bounded = BranchAndBound(problem, search.solve, bounds, floors, limit_s, slack, relaxed=width == 0)
        stages, at_least, _ = bounded.run(search.may_go_on)
        return stages, at_least

    if search.few:
        best, at_least = branch(effort.widths[-1], math.inf, ROUNDING)
        return best, at_least, search.rounds
    best = ()
    _, at_least = branch(0, math.inf, CLOSE)
    relaxed_s = at_least
    for factor in NOT_FAR:
        if not best and search.may_go_on():
            best, certain = branch(effort.widths[0], relaxed_s * factor, CLOSE)
            at_least = max(at_least, certain)
    for width in effort.widths[1:]:
        best_s = problem.total_s(best) if best else math.inf
        if at_least < best_s and search.may_go_on():
            better, certain = branch(width, best_s, ROUNDING)
            best, at_least = better or best, max(at_least, certain)
    return best, at_least, search.rounds


@final
class _Search:
    """Answers for one bound, first by prices, then by a beam; what it learns of prices it keeps."""

    def __init__(self, choices: Choices, effort: Effort) -> None:
        self._choices, self._effort = choices, effort
        self._prices: FloatArray = np.zeros(len(choices.available))
        self.few = choices.num_groups * float(np.prod(choices.available + 1.0)) <= FEW_STATES
        self._left = float(effort.work)
        self.rounds, self.width = 0, 0

    def may_go_on(self) -> bool:
        """Whether some of the effort is left."""
        return self._left > 0

    def solve(self, bound: float, below: float, here: float) -> Answer:
        """What no sum within the bound is below, and a slicing if one was found that is below what is asked for."""
        self.rounds += 1
        steps = 0 if self.few else self._effort.steps
        relaxation = Relaxation(self._choices, bound)
        relaxed = relaxation.tightened(below, self._prices, steps)
        self._left -= relaxation.work / ENTRIES
        if relaxed.value >= below or math.isinf(relaxed.value):
            return relaxed.value, ()
        self._prices = relaxed.prices
        # Slicings with lesser stage costs are found at lower bounds.
        if self.width == 0 or (relaxed.value >= here and not self.few):
            return relaxed.value, ()
        beam = Beam(self._choices, bound, relaxed, below, self.width, self._left)
        least, stages = beam.run()
        self._left -= beam.work
        return max(least, relaxed.value), stages
