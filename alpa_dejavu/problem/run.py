"""How a model is going to be run."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.problem import checks
from alpa_dejavu.problem.limits import MOST_MICRO_BATCHES, at_most

SCHEDULES = ("1f1b", "1f1b_overlap_friendly", "gpipe", "inference")


@final
@dataclasses.dataclass(frozen=True)
class Run:
    """A training or inference step to plan for: its number of micro-batches and its pipeline schedule.

    Attributes:
        num_micro_batches: B, how many micro-batches a batch is cut into.
        schedule: one of Alpa's pipeline schedules.
    """

    num_micro_batches: int
    schedule: str = "1f1b"

    def __post_init__(self) -> None:
        checks.positive("run", "num_micro_batches", self.num_micro_batches)
        at_most("num_micro_batches", self.num_micro_batches, MOST_MICRO_BATCHES, "take larger micro-batches")
        checks.one_of("run", "schedule", self.schedule, SCHEDULES)

    def in_flight(self, successors: int) -> int:
        """Returns how many micro-batches' activations a stage keeps at a time when `successors` stages follow it.

        >>> [Run(8, schedule).in_flight(2) for schedule in SCHEDULES]
        [3, 5, 8, 0]

        References:
            Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021 (1F1B).
        """
        if self.schedule == "inference":
            return 0
        if self.schedule == "gpipe":
            return self.num_micro_batches
        ahead = successors + 1 if self.schedule == "1f1b" else 2 * successors + 1
        return min(ahead, self.num_micro_batches)
