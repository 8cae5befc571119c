"""Logarithms of seconds fitted by figures whose logarithms have priors; how sure that leaves any prediction, and which
measurement would make the worst one surer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares

from alpa_dejavu._util.ties import first_least

__all__ = ["ENOUGH", "Array", "Fitted", "LogFit", "LogModel", "fit_logs", "next_measurement", "summary"]

Array: TypeAlias = NDArray[np.float64]
T = TypeVar("T")
_NOISE = 0.15
_LEAST_NOISE = 0.03
_STEP = 1e-4
_ROUNDS = 2
_ENOUGH = 6
"""The noise is told from residuals where there are at least so many."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LogFit:
    """The result of fitting P figures (such as rates and latencies) to measured seconds: their logarithms, how sure
    these are, and the noise.

    Attributes:
        values: logarithms of the figures, shape (P,).
        covariance: the covariance of these logarithms, shape (P, P).
        noise: standard deviation of the logarithm of a measurement whose weight is 1.
    """

    values: Array
    covariance: Array
    noise: float

    @property
    def spread(self) -> Array:
        """Returns the standard deviation of the logarithm of each fitted figure, such as a rate, shape (P,)."""
        return np.sqrt(np.diag(self.covariance))

    def spread_of(self, log_seconds: Callable[[Array], Array]) -> Array:
        """Returns the standard deviation of each logarithm of seconds that `log_seconds` predicts from the logarithms
        of the fitted figures, shape (N,), linearised in them; the noise of measurements isn't in it.
        """
        steps = _STEP * np.eye(len(self.values))
        moved = [log_seconds(self.values + step) - log_seconds(self.values - step) for step in steps]
        slopes = np.stack(moved, axis=1) / (2 * _STEP)
        return np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes), 0.0))


def fit_logs(
    log_seconds: Callable[[Array], Array], measured_log_s: Array, weights: Array, prior: Array, prior_spread: Array
) -> LogFit:
    """Fits figures to measured seconds, as logarithms and robustly: a few wrong measurements hardly count.

    Args:
        log_seconds: a function from the logarithms of the figures, shape (P,), to those of the predicted seconds, shape
            (N,).
        measured_log_s: logarithms of the measured seconds, shape (N,); there may be none.
        weights: a measurement of weight w counts as if its noise were 1/w of the others', shape (N,).
        prior: expected logarithms of the figures, shape (P,).
        prior_spread: standard deviations of these expected logarithms, shape (P,).
    """
    noise, values = _NOISE, np.array(prior, dtype=np.float64)
    for _ in range(_ROUNDS):

        def residuals(some: Array, noise: float = noise) -> Array:
            errors = (log_seconds(some) - measured_log_s) * weights / noise
            return np.r_[errors, (some - prior) / prior_spread]

        found = least_squares(residuals, values, loss="soft_l1", max_nfev=60)
        values = found.x
        errors = np.abs((log_seconds(values) - measured_log_s) * weights)
        if len(errors) >= _ENOUGH:
            # The usual one, from the median: outliers don't raise it.
            noise = max(float(np.median(errors)) / 0.6745, _LEAST_NOISE)
    jacobian = np.asarray(found.jac)
    return LogFit(values, np.linalg.inv(jacobian.T @ jacobian), noise)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Fitted(Generic[T]):
    """A device or a link with fitted figures, and how far they can be trusted.

    Attributes:
        figures: the device or link with its fitted figures.
        spread: standard deviation of the logarithm of each figure, by name.
        held_out: mean and median error, as fractions, of what a fit had left out, group by group; empty where fewer
            than two groups were measured.
        unsure: standard deviation of the predicted logarithm of the seconds of each of N probes (programs or
            collectives), shape (N,).
        refused: why the fit isn't taken, and `figures` are those from before it; empty where it is taken.
    """

    figures: T
    spread: Mapping[str, float]
    held_out: Mapping[str, float]
    unsure: Array
    refused: str = ""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LogModel:
    """A model of the seconds that N probes (programs or collectives) take, by P figures (such as rates) that are fitted
    to the probes that were measured; probes of a group err together.

    Attributes:
        log_seconds: a function from the logarithms of the figures, shape (P,), to those of all probes' predicted
            seconds, shape (N,).
        groups: the number of each probe's group, shape (N,).
        weights: how much each probe's measurement counts, shape (N,), as `fit_logs` takes it.
        prior, prior_spread: expected logarithms of the figures, and their standard deviations, shape (P,).
    """

    log_seconds: Callable[[Array], Array]
    groups: NDArray[np.int64]
    weights: Array
    prior: Array
    prior_spread: Array

    def fit(self, measured: Mapping[int, float]) -> LogFit:
        """Fits the model's figures (such as rates) to the measured seconds of probes (programs or collectives).

        Args:
            measured: the measured seconds by the index of the probe; there may be none.
        """
        rows = np.array(list(measured), dtype=np.int64)
        seconds = np.array(list(measured.values()), dtype=np.float64)
        return fit_logs(
            lambda values: self.log_seconds(values)[rows],
            np.log(seconds),
            self.weights[rows],
            self.prior,
            self.prior_spread,
        )

    def left_out_errors(self, measured: Mapping[int, float]) -> dict[int, float]:
        """Returns the error, as a fraction, on each measured probe of a fit that its group was left out of; empty for
        fewer than two groups.

        Args:
            measured: the measured seconds by the index of the probe.
        """
        rows = np.array(list(measured), dtype=np.int64)
        groups = self.groups[rows]
        if len(np.unique(groups)) < 2:
            return {}
        errors: dict[int, float] = {}
        for group in np.unique(groups):
            kept = {row: measured[row] for row in rows[groups != group].tolist()}
            chosen = rows[groups == group].tolist()
            errors |= self._errors(self.fit(kept).values, {row: measured[row] for row in chosen})
        return errors

    def prior_errors(self, measured: Mapping[int, float]) -> dict[int, float]:
        """Returns the error, as a fraction, on each measured probe of the figures that were known before any fit;
        `measured` has the seconds by the index of the probe.
        """
        return self._errors(self.prior, measured)

    def _errors(self, values: Array, measured: Mapping[int, float]) -> dict[int, float]:
        predicted = np.exp(self.log_seconds(values))
        return {row: float(abs(predicted[row] / seconds - 1)) for row, seconds in measured.items()}


def summary(errors: ArrayLike) -> dict[str, float]:
    """Returns the mean ("mape") and the median ("median_ape") of errors, which are fractions; {} where there are none.

    >>> summary([0.1, 0.2, 0.6])["median_ape"]
    0.2
    """
    values = np.asarray(errors, dtype=np.float64)
    return {"mape": float(values.mean()), "median_ape": float(np.median(values))} if values.size else {}


ENOUGH = 0.05
"""The spread under which nothing needs to be measured any more."""


def next_measurement(spread: ArrayLike, done: Collection[int], enough: float = ENOUGH) -> int | None:
    """Returns the index of the candidate (such as a program) to measure next: the one whose predicted seconds are least
    sure, the first of equal ones; None if none is left whose spread is above `enough`.

    Measuring the candidate of the largest spread is the greedy rule for a G-optimal design, which makes the worst
    prediction as sure as so many measurements can.

    Args:
        spread: the standard deviation of the logarithm of each candidate's predicted seconds, shape (N,).
        done: indices of the candidates that can't be chosen: they were measured, or can't be.
        enough: the spread up to which a candidate needs no measurement.

    References:
        Kiefer and Wolfowitz, The equivalence of two extremum problems, Canadian Journal of Mathematics 12, 1960.

    >>> next_measurement([0.3, 0.1, 0.2], done=[0])
    2
    >>> next_measurement([0.3, 0.01, 0.02], done=[0]) is None
    True
    """
    left = np.array(spread, dtype=np.float64)
    left[list(done)] = -np.inf
    best = int(first_least(-left)) if left.size else 0
    return best if left.size and left[best] > enough else None
