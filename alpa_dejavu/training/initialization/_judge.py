"""In what order candidates are to be kept, by their curves."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.problem import checks
from alpa_dejavu.training.initialization._trend import Measure


class Judge(abc.ABC):
    """Orders candidates."""

    @abc.abstractmethod
    def order(self, measures: Mapping[int, Measure]) -> tuple[int, ...]:
        """The candidates' numbers, the best first; the same measures always give the same order."""


@final
@dataclasses.dataclass(frozen=True)
class LastLoss(Judge):
    """The null model: the smallest last loss."""

    def order(self, measures: Mapping[int, Measure]) -> tuple[int, ...]:
        return tuple(sorted(measures, key=lambda number: (measures[number].last, number)))


@final
@dataclasses.dataclass(frozen=True)
class Trend(Judge):
    """A small loss at the end of the fitted trend, and a large gradient relative to the weights.

    Both count by rank, so neither needs a scale. On a plateau, where no fall stands out of the noise, a large gradient
    is no promise: it counts as the smallest.

    Attributes:
        gradient_weight: what a rank of the gradient counts against one of the loss; 0: nothing.

    Raises ValueError for a negative weight.
    """

    gradient_weight: float = 0.25

    def __post_init__(self) -> None:
        checks.not_negative("trend", "gradient_weight", self.gradient_weight)

    def order(self, measures: Mapping[int, Measure]) -> tuple[int, ...]:
        numbers = sorted(measures)
        if not numbers:
            return ()
        promised = _ranks([measures[number].promised for number in numbers])
        gradient = _ranks([_smallness(measures[number]) for number in numbers])
        merit = dict(zip(numbers, (promised + self.gradient_weight * gradient).tolist(), strict=True))
        return tuple(sorted(numbers, key=lambda number: (merit[number], measures[number].loss, number)))


def judge(choice: str | Judge) -> Judge:
    """The judge of a name ("last_loss", "trend"), or the given one.

    >>> judge("trend")
    Trend(gradient_weight=0.25)
    """
    known: dict[str, type[Judge]] = {"last_loss": LastLoss, "trend": Trend}
    return resolve("judge", choice, known, Judge)  # type: ignore[type-abstract]


def _smallness(measure: Measure) -> float:
    """Of the gradient; unknown ones are alike."""
    if measure.on_plateau or not np.isfinite(measure.relative_gradient):
        return np.inf
    return -measure.relative_gradient


def _ranks(values: list[float]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """From 0; equal values have equal ranks."""
    return np.unique(values, return_inverse=True)[1].reshape(-1)
