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


@final
@dataclasses.dataclass(frozen=True)
class Effort:
    """How far a placed search goes; counted, not timed, so that the same problem always gets the same answer.

    Attributes:
        widths: of the beams, one round of branch-and-bound after the other while there is something to win.
        steps: for the prices at each bound.
        rounds: how many bounds are looked at, at most.
        pairs: of a beginning and a next stage, how many are compared, at most (a beam that was begun is ended).
        gap: what is less than this fraction better isn't looked for with a wider beam.
    """

    widths: tuple[int, ...] = (64, 512, 4096)
    steps: int = 40
    rounds: int = 120
    pairs: int = 100_000_000
    gap: float = 0.0


def placed(
    problem: SlicingProblem, sites: Sites, effort: Effort
) -> tuple[tuple[StageChoice, ...], float, int]:
    """The best slicing found, what none costs less than, and how many bounds were looked at."""
    choices = Choices(problem, sites)
    bounds, floors = choices.bounds()
    if not len(bounds):
        return (), math.inf, 0
    search = _Search(choices, effort)
    best: tuple[StageChoice, ...] = ()
    at_least, rounds = 0.0, 0
    for width in effort.widths:
        search.width = width
        branch = BranchAndBound(problem, search.solve, bounds, floors, best, ROUNDING)
        best, certain, tried = branch.run(search.may_go_on)
        best_s = problem.total_s(best) if best else math.inf
        at_least, rounds = max(at_least, min(certain, best_s)), rounds + tried
        if at_least >= best_s / (1 + effort.gap) or not search.may_go_on():
            break
    return best, at_least, rounds


@final
class _Search:
    """Answers for one bound, first by prices, then by a beam; what it learns of prices it keeps."""

    def __init__(self, choices: Choices, effort: Effort) -> None:
        self._choices, self._effort = choices, effort
        self._prices: FloatArray = np.zeros(len(choices.available))
        states = choices.num_groups * float(np.prod(choices.available + 1.0))
        self._steps = effort.steps if states > FEW_STATES else 0
        self._rounds, self._pairs = 0, 0
        self.width = effort.widths[0]

    def may_go_on(self) -> bool:
        """Whether some of the effort is left."""
        return self._rounds < self._effort.rounds and self._pairs < self._effort.pairs

    def solve(self, bound: float, below: float) -> Answer:
        """What no sum within the bound is below, and a slicing if one was found that is below what is asked for."""
        self._rounds += 1
        relaxed = Relaxation(self._choices, bound).tightened(below, self._prices, self._steps)
        if relaxed.value >= below or math.isinf(relaxed.value):
            return relaxed.value, ()
        if self._steps:
            self._prices = relaxed.prices
        beam = Beam(self._choices, bound, relaxed, below, self.width)
        least, stages = beam.run()
        self._pairs += beam.looked_at
        return max(least, relaxed.value), stages
