"""A lower bound on the cost of all plans, by the prices that the relaxation found and a few steps more."""

from __future__ import annotations

import math
from typing import final

import numpy as np

from alpa_dejavu.problem import SlicingProblem
from alpa_dejavu.slicing._branch import Answer, BranchAndBound
from alpa_dejavu.slicing._relaxed import Relaxation
from alpa_dejavu.slicing.relaxation._batch import FloatArray
from alpa_dejavu.slicing.relaxation._lattice import Lattice

STEPS, MOST_BOUNDS, SLACK = 8, 16, 1e-3


def certificate(lattice: Lattice, prices: FloatArray, best_s: float) -> float:
    """Returns a lower bound, in seconds, on the cost of any plan, from a Lagrangian relaxation at bounds on the largest
    stage.

    Args:
        lattice: the slicing problem, prepared for the relaxation.
        prices: shape (R,), the price of all that there is of each of R resources, in units of `lattice.unit_s` seconds.
        best_s: the cost of a plan that is known; no larger bound is looked for.
    """
    problem: SlicingProblem = lattice.problem
    bounds, floors = lattice.choices.bounds()
    if not len(bounds):
        return math.inf
    search = _Priced(lattice, prices)
    bounded = BranchAndBound(problem, search.solve, bounds, floors, best_s, SLACK, relaxed=True)
    _, at_least, _ = bounded.run(lambda: search.solved < MOST_BOUNDS)
    return at_least


@final
class _Priced:
    """A search within one bound, by prices alone; they are kept from one bound to the next."""

    def __init__(self, lattice: Lattice, prices: FloatArray) -> None:
        self._choices = lattice.choices
        available = np.maximum(lattice.choices.available, 1)
        each = prices[: len(available)] * lattice.unit_s / available
        self._prices = np.where(lattice.choices.exact, each, np.maximum(each, 0.0))
        self.solved = 0

    def solve(self, bound: float, below: float, here: float) -> Answer:
        """Returns a lower bound on the summed weights of slicings whose stages cost at most `bound`, and never a
        slicing.
        """
        self.solved += 1
        found = Relaxation(self._choices, bound).tightened(below, self._prices, STEPS)
        if math.isfinite(found.value):
            self._prices = found.prices
        return found.value, ()
