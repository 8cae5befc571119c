"""The interface of slicers."""

from __future__ import annotations

import abc

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
