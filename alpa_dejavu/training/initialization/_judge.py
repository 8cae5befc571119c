"""The judges, which order candidates by their curves."""

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
    """An interface of judges, which order candidate initializations by the measures of their loss curves."""

    @abc.abstractmethod
    def order(self, measures: Mapping[int, Measure]) -> tuple[int, ...]:
        """Returns the numbers of the candidates, the best first, by their measures; the same measures always give the
        same order.
        """


@final
@dataclasses.dataclass(frozen=True)
class LastLoss(Judge):
    """A judge that orders candidates by their last loss alone, the smallest first: the baseline for others."""

    def order(self, measures: Mapping[int, Measure]) -> tuple[int, ...]:
        return tuple(sorted(measures, key=lambda number: (measures[number].last, number)))


@final
@dataclasses.dataclass(frozen=True)
class Trend(Judge):
    """A judge that prefers candidates with a small loss at the end of their curve's fitted trend, and with a large
    gradient relative to the weights.

    Both count by their rank among the candidates, so neither needs a scale. On a plateau, where no fall stands out of
    the noise, a large gradient is no promise: it counts as the smallest.

    Attributes:
        gradient_weight: how much a rank by gradient counts against a rank by loss; 0: nothing.

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
    """Returns the judge that a name stands for ("last_loss", "trend"), or the given judge itself.

    >>> judge("trend")
    Trend(gradient_weight=0.25)
    """
    known: dict[str, type[Judge]] = {"last_loss": LastLoss, "trend": Trend}
    return resolve("judge", choice, known, Judge)  # type: ignore[type-abstract]


def _smallness(measure: Measure) -> float:
    """Returns a number that is the smaller the larger the gradient is; unknown gradients are alike, and last."""
    if measure.on_plateau or not np.isfinite(measure.relative_gradient):
        return np.inf
    return -measure.relative_gradient


def _ranks(values: list[float]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Returns the ranks of values, from 0; equal values have equal ranks."""
    return np.unique(values, return_inverse=True)[1].reshape(-1)
