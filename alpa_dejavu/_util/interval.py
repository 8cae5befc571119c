"""The mean of a few values, and how far the mean of all such values may be from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean, and between which two numbers it is with some confidence, by Student's t.

    Both are infinite where one value alone says nothing about others; all are NaN where there is no value.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], confidence: float = 0.9) -> Interval:
        """Returns the mean of values with its interval.

        >>> Interval.of([1.0, 2.0, 3.0])
        Interval(mean=2.0, low=0.314..., high=3.685...)
        """
        if not values:
            return cls(math.nan, math.nan, math.nan)
        low, mean, high = column_intervals(np.asarray(values, np.float64)[:, None], confidence)
        return cls(float(mean[0]), float(low[0]), float(high[0]))

    def exp(self) -> Interval:
        """Returns what the interval of logarithms says of the values themselves: a geometric mean, and its interval."""
        with np.errstate(over="ignore"):
            return Interval(*np.exp([self.mean, self.low, self.high]).tolist())


def column_intervals(values: Floats, confidence: float = 0.9) -> tuple[Floats, Floats, Floats]:
    """Returns the lower ends, means and upper ends of the columns of an array, each of shape (columns,)."""
    from scipy.special import stdtrit

    count, mean = len(values), values.mean(axis=0)
    if count < 2:
        return np.full_like(mean, -math.inf), mean, np.full_like(mean, math.inf)
    with np.errstate(invalid="ignore"):  # a loss that has grown beyond all bounds has no interval
        reach = stdtrit(count - 1, (1 + confidence) / 2) * values.std(axis=0, ddof=1) / math.sqrt(count)
    return mean - reach, mean, mean + reach
