"""Chooses anew for each gradient what a worker leaves out, by what it can afford then."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

from alpa_dejavu.problem import checks

__all__ = ["AffordedVectors"]


@final
@dataclasses.dataclass(frozen=True)
class AffordedVectors:
    """Vectors of what is left out, of which each worker takes for each gradient the first that it can afford then: with
    which the gradient takes at most some seconds at the speed that the worker has when it begins it.

    Attributes:
        vectors: the shares of each layer's units that are left out, the best vector first.
        within_s: the seconds that a gradient may take; where it takes longer with each vector, the quickest is taken.
        seconds: for each worker those of a gradient with each vector while nothing slows the worker down; None:
            `Job.predicted` predicts them.
    """

    vectors: Sequence[Sequence[float]]
    within_s: float
    seconds: Sequence[Sequence[float]] | None = None

    def __post_init__(self) -> None:
        checks.positive("afforded vectors", "within_s", self.within_s)
        if not len(self.vectors):
            raise ValueError("afforded vectors: vectors is empty, but must be one or more; give the best first")
        for worker, each in enumerate(self.seconds or ()):
            if len(each) != len(self.vectors):
                raise ValueError(f"afforded vectors: seconds[{worker}] is {tuple(each)}, but must be "
                                 f"{len(self.vectors)} numbers; give those of each vector")  # fmt: skip
            for seconds in each:
                checks.not_negative("afforded vectors", f"seconds[{worker}]", seconds)

    def place(self, worker: int, slowed: float = 1.0) -> int:
        """Returns the place of the vector that a worker takes where its gradients take so many times as long."""
        assert self.seconds is not None, "it was checked"
        each = [slowed * seconds for seconds in self.seconds[worker]]
        within = (place for place, seconds in enumerate(each) if seconds <= self.within_s)
        return next(within, each.index(min(each)))
