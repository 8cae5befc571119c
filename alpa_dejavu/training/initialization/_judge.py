"""The judges, which order candidates by their curves."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias, final

import numpy as np

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Course: TypeAlias = Float[np.ndarray, " T"]

FEWEST = 3
"""So many losses a line with an error needs."""
CLEARLY = 2.0
"""A slope of so many standard errors stands out of the noise."""


@final
@dataclasses.dataclass(frozen=True)
class Measure:
    """A measure of a candidate's loss curve: its fitted trend, and the loss that this promises for the end of the
    training.

    Attributes:
        loss, promised: the trend's loss at the last step, and at the end of the training.
        on_plateau: whether the trend falls by no more than the noise might explain.
        relative_gradient: the median over the trend of the gradient's norm over the weights'; NaN: unknown.
    """

    steps: int
    last: float
    loss: float
    promised: float
    on_plateau: bool
    relative_gradient: float


def measured(losses: Course, relative_gradients: Course, first_step: int, horizon: int) -> Measure:
    """Returns the measure of a loss curve that begins at a step: its fitted trend, and the loss that this promises for
    the end of the training, `horizon` steps. Losses are finite, and one at least; gradients' norms over the weights'
    are NaN where they are unknown.
    """
    at = np.log2(np.arange(first_step + 1, first_step + len(losses) + 1, dtype=float))
    falls_by_power = bool((losses > 0).all())
    values = np.log(losses) if falls_by_power else losses
    begin = end_of_drop(at, values)
    slope, now, error = _line(at[begin:], values[begin:])
    certain = max(0.0, 1 - (error / slope) ** 2) if slope else 0.0
    then = now + slope * certain * (math.log2(max(horizon, first_step + len(losses))) - at[-1])
    loss, promised = (math.exp(min(now, 700.0)), math.exp(min(then, 700.0))) if falls_by_power else (now, then)
    finite = relative_gradients[begin:][np.isfinite(relative_gradients[begin:])]
    return Measure(
        len(losses),
        float(losses[-1]),
        loss,
        promised,
        not slope < -CLEARLY * error,
        float(np.median(finite)) if finite.size else math.nan,
    )


def end_of_drop(at: Course, values: Course) -> int:
    """Returns the index at which a loss curve's steep first part ends: the knee of the two lines that fit best;
    0 if it has none. `at` is the logarithm of each step's number.

    A short curve has too few points for two lines: the index is then about its middle.
    """
    count = len(values)
    if count < 4 * FEWEST:
        return max(0, min(count // 2, count - FEWEST))
    best, least = 0, math.inf
    sums = np.concatenate([np.zeros((5, 1)), np.cumsum([at, values, at * at, at * values, values * values], axis=1)], 1)
    for knee in range(2, count // 2 + 1):
        first, then = _fit(sums[:, knee], knee), _fit(sums[:, -1] - sums[:, knee], count - knee)
        if first[1] + then[1] < least:
            least = first[1] + then[1]
            best = knee if first[0] < then[0] else 0
    return best


def _fit(sums: Float[np.ndarray, " 5"], count: int) -> tuple[float, float]:
    """Returns the slope of the best line, and its squared residuals."""
    x, y, xx, xy, yy = sums.tolist()
    spread, together = xx - x * x / count, xy - x * y / count
    slope = together / spread if spread > 0 else 0.0
    return slope, max(0.0, yy - y * y / count - slope * together)


def _line(at: Course, values: Course) -> tuple[float, float, float]:
    """Returns a line's slope, its last value and the slope's standard error; too few points have a flat one."""
    if len(values) < FEWEST:
        return 0.0, float(values.mean()), 0.0
    around = at - at.mean()
    spread = float(around @ around)
    slope = float(around @ values) / spread
    left = values - values.mean() - slope * around
    return slope, float(values.mean() + slope * around[-1]), math.sqrt(float(left @ left) / (len(values) - 2) / spread)


class Judge(abc.ABC):
    """An interface of judges, which order candidate initializations by the measures of their loss curves."""

    @abc.abstractmethod
    def order(self, measures: Mapping[int, Measure]) -> tuple[int, ...]:
        """Returns the candidates' numbers, the best first, by their measures; the same ones give the same order."""


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

    Both count by their rank among the candidates, so neither needs a scale; a rank by gradient counts `gradient_weight`
    times, at least 0. On a plateau, where no fall stands out of the noise, a large gradient is no promise: it counts as
    the smallest.
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
    finite: dict[str, type[Judge]] = {"last_loss": LastLoss, "trend": Trend}
    return resolve("judge", choice, finite, Judge)  # type: ignore[type-abstract]


def _smallness(measure: Measure) -> float:
    """Returns a number that is the smaller the larger the gradient is; unknown gradients are alike, and last."""
    if measure.on_plateau or not np.isfinite(measure.relative_gradient):
        return np.inf
    return -measure.relative_gradient


def _ranks(values: list[float]) -> Int[np.ndarray, " candidates"]:
    """Returns the ranks of values, from 0; equal values have equal ranks."""
    return np.unique(values, return_inverse=True)[1].reshape(-1)
