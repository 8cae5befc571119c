"""The interface of objectives that measure a slicing, besides those that have a name."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alpa_dejavu.problem.slicing_problem import SlicingProblem, StageChoice


class Objective(abc.ABC):
    """A measure of a slicing (the stages that layers are cut into), in seconds of any kind, that slicers make least:
    `SlicingProblem.objective` takes one in place of a name.

    Slicers that try plans ("exhaustive", "mcmc", "uniform") work with any; those that need a recurrence raise
    ValueError where they have none for it.
    """

    @abc.abstractmethod
    def total_s(self, problem: SlicingProblem, stages: tuple[StageChoice, ...]) -> float:
        """Returns the cost, in seconds, that an objective gives all stages of a slicing together; less is better.

        Args:
            problem: the slicing problem whose layers are cut.
            stages: the stages in the order of the layers; the problem allows them, each at a finite cost.

        Returns:
            Seconds, at least 0; infinite if the objective itself rules the stages out.
        """
