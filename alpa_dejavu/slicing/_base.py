"""The interface of slicers."""

from __future__ import annotations

import abc
import math

from alpa_dejavu._util.ties import least
from alpa_dejavu.problem import Objective, Slicing, SlicingProblem


class Slicer(abc.ABC):
    """An algorithm that cuts a model's layers into pipeline stages, each with its devices.

    `alpa_dejavu.testing.check_slicer` checks whether an implementation is sound.
    """

    @abc.abstractmethod
    def slice(self, problem: SlicingProblem) -> Slicing:
        """Returns the best slicing (the stages, with their cost and a lower bound) that it finds for a problem; one
        without stages and of infinite cost if it finds none.

        The same problem always gets the same stages. `Slicing.of` makes such a result from stages.
        """


def best_of_families(slicer: Slicer, problem: SlicingProblem) -> Slicing:
    """Returns the best of the slicings that a slicer, which knows nothing of families of stages, finds for each family
    of a problem.
    """
    slicings = [slicer.slice(family) for family in problem.each_family()]
    bound_s = min((slicing.lower_bound_s for slicing in slicings), default=math.inf)
    best = least(slicings, key=lambda slicing: slicing.cost_s).stages if slicings else ()
    rounds, seconds = sum(slicing.iterations for slicing in slicings), sum(slicing.seconds for slicing in slicings)
    return Slicing.of(problem, best, bound_s, rounds, seconds)


def check_has_recurrence(owner: str, problem: SlicingProblem) -> None:
    """Checks that a problem's objective is one of those that have a name, for which a slicer has a recurrence.

    Args:
        owner: the slicer's name, for the message.
        problem: the slicing problem.

    Raises:
        ValueError: the objective is an `Objective`, a Python function of the stages.
    """
    if isinstance(problem.objective, Objective):
        raise ValueError(
            f"{owner} has no recurrence for the objective {problem.objective!r}; take a slicer that tries plans, as "
            f"'mcmc' or, with few layers, 'exhaustive' does"
        )
