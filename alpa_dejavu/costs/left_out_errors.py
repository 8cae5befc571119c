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
    """Predicted means and ends of 90 % intervals, in seconds; `in_domain` says whether the model was fitted to the
    like.
    """

    mean: Array
    lower: Array
    upper: Array
    in_domain: NDArray[np.bool_]

    @classmethod
    def of(cls, log_s: Array, ends: Array, in_domain: NDArray[np.bool_]) -> Seconds:
        """Returns the seconds whose natural logarithms were predicted, with both ends of their intervals.

        The logarithm of an end is that of the prediction plus an error; errors have shape (2,), or (rows, 2).
        """
        return cls(np.exp(log_s), np.exp(log_s + ends[..., 0]), np.exp(log_s + ends[..., 1]), in_domain)


class _Rows(Protocol):
    """Rows of what is measured, such as kernels or collectives."""

    def take(self: Rows, index: NDArray[np.bool_]) -> Rows:
        """Returns some of the measured rows, by a mask."""
        ...

    def __len__(self) -> int: ...


Rows = TypeVar("Rows", bound=_Rows)
_Given = TypeVar("_Given", contravariant=True)


class _Point(Protocol[_Given]):
    """A fitted model of means."""

    def log_seconds(self, rows: _Given, /) -> Array:
        """Returns the logarithms of the predicted seconds of some measured rows, such as kernels."""
        ...


def left_out_errors(
    fit: Callable[[Rows, Array], _Point[Rows]],
    rows: Rows,
    seconds: Array,
    folds: NDArray[np.int64],
    whole: _Point[Rows] | None = None,
) -> Array:
    """Returns for each measured row its cross-validated error: the log of measured over predicted seconds.

    The prediction is by a fit that didn't see the row's fold. With one fold alone nothing can be left out: then the
    errors are those of `whole`, or zero without it.
    """
    errors = np.zeros(len(rows))
    for held in np.unique(folds):
        out = folds == held
        inner = whole if out.all() else fit(rows.take(~out), seconds[~out])
        if inner is not None:
            errors[out] = np.log(seconds[out]) - inner.log_seconds(rows.take(out))
    return errors


def interval_ends(errors: Array) -> Array:
    """Returns the ends of a 90 % interval of errors, which always holds zero; shape (2,)."""
    low, high = np.quantile(errors, _ENDS)
    return np.array([min(float(low), 0.0), max(float(high), 0.0)])
