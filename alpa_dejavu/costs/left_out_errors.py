"""Seconds with 90 % intervals, whose ends come from the errors on groups that a fit had left out.

References:
    Barber, Candès, Ramdas and Tibshirani, Predictive inference with the jackknife+, Annals of Statistics 49(1), 2021.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol, TypeVar, final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_ENDS = (0.05, 0.95)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Seconds:
    """Predicted seconds of some rows (such as kernels or collectives): the means, and both ends of 90 % intervals, each
    of shape (rows,).

    `in_domain` says which rows are like those that the predicting model was fitted to.
    """

    mean: Array
    lower: Array
    upper: Array
    in_domain: NDArray[np.bool_]

    @classmethod
    def of(cls, log_s: Array, ends: Array, in_domain: NDArray[np.bool_]) -> Seconds:
        """Returns the predicted seconds of some rows, with both ends of their 90 % intervals, from logarithms.

        Args:
            log_s: the natural logarithms of the predicted seconds, shape (rows,).
            ends: the errors that are added to them for the lower and the upper end, shape (2,) or (rows, 2).
            in_domain: whether each row is like those that the predicting model was fitted to, shape (rows,).
        """
        return cls(np.exp(log_s), np.exp(log_s + ends[..., 0]), np.exp(log_s + ends[..., 1]), in_domain)


class _Rows(Protocol):
    """Rows of what is measured, such as kernels or collectives."""

    def take(self: Rows, index: NDArray[np.bool_]) -> Rows:
        """Returns the measured rows (such as kernels or collectives) that a boolean mask selects."""
        ...

    def __len__(self) -> int: ...


Rows = TypeVar("Rows", bound=_Rows)
_Given = TypeVar("_Given", contravariant=True)


class _Point(Protocol[_Given]):
    """A fitted model of means."""

    def log_seconds(self, rows: _Given, /) -> Array:
        """Returns the natural logarithms of the seconds that are predicted for some rows, such as kernels."""
        ...


def left_out_errors(
    fit: Callable[[Rows, Array], _Point[Rows]],
    rows: Rows,
    seconds: Array,
    folds: NDArray[np.int64],
    whole: _Point[Rows] | None = None,
) -> Array:
    """Returns for each measured row its cross-validated error: the log of measured over predicted seconds.

    The prediction is by a model that `fit` makes without the rows of the same fold; `folds` has the number of each
    row's fold. With only one fold nothing can be left out: then the errors are those of `whole`, a model fitted to all
    rows, or zero without it.
    """
    errors = np.zeros(len(rows))
    for held in np.unique(folds):
        out = folds == held
        inner = whole if out.all() else fit(rows.take(~out), seconds[~out])
        if inner is not None:
            errors[out] = np.log(seconds[out]) - inner.log_seconds(rows.take(out))
    return errors


def interval_ends(errors: Array) -> Array:
    """Returns the lower and the upper end, shape (2,), of the middle 90 % of some errors, widened to contain zero."""
    low, high = np.quantile(errors, _ENDS)
    return np.array([min(float(low), 0.0), max(float(high), 0.0)])
