"""The interface of slicers."""

from __future__ import annotations

import abc

from alpa_dejavu.problem import Objective, Slicing, SlicingProblem


class Slicer(abc.ABC):
    """An algorithm that cuts a model's layers into pipeline stages, each with its devices.

    `alpa_dejavu.testing.check_slicer` says if one is sound.
    """

    @abc.abstractmethod
    def slice(self, problem: SlicingProblem) -> Slicing:
        """Returns the best slicing that it finds; one without stages and of infinite cost if none is found.

        The same problem always gets the same stages. `Slicing.of` makes the answer of stages.
        """


def check_has_recurrence(owner: str, problem: SlicingProblem) -> None:
    """Raises an error if a problem's objective is a Python function, for which a slicer's recurrence doesn't hold.

    Raises:
        ValueError: the problem's objective is another.
    """
    if isinstance(problem.objective, Objective):
        raise ValueError(
            f"{owner} has no recurrence for the objective {problem.objective!r}; take a slicer that tries plans, as "
            f"'mcmc' or, with few layers, 'exhaustive' does"
        )
