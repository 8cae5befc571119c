"""The interface of slicers."""

from __future__ import annotations

import abc
import math
import time
from typing import final

from alpa_dejavu.problem import Objective, Slicing, SlicingProblem, StageChoice


class Slicer(abc.ABC):
    """Answers a slicing problem. `alpa_dejavu.testing.check_slicer` says if one is sound."""

    @final
    def slice(self, problem: SlicingProblem) -> Slicing:
        """The best slicing that it finds; one without stages and of infinite cost if it finds none.

        The same problem always gets the same answer.
        """
        started = time.perf_counter()
        stages, lower_bound, iterations = self._search(problem)
        cost = problem.total_s(stages) if stages else math.inf
        return Slicing(stages, cost, min(lower_bound, cost), iterations, time.perf_counter() - started)

    @abc.abstractmethod
    def _search(self, problem: SlicingProblem) -> tuple[tuple[StageChoice, ...], float, int]:
        """Returns the stages (none if there are none), a lower bound on all slicings, and how many rounds it took."""


def check_has_recurrence(owner: str, problem: SlicingProblem) -> None:
    """Checks that a slicer's recurrence covers the objective: it builds on what the named objectives are made of.

    Raises:
        ValueError: the problem's objective is another.
    """
    if isinstance(problem.objective, Objective):
        raise ValueError(
            f"{owner} has no recurrence for the objective {problem.objective!r}; take a slicer that tries plans, as "
            f"'mcmc' or, with few layers, 'exhaustive' does"
        )
