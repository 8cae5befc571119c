"""Measured values that differ by noise alone become equal, so that hosts that are alike are found to be."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["grouped"]

_WIDEST = 3.0
"""A group reaches over so many tolerances: noise spreads, but a row of small steps doesn't become one value."""


def grouped(values: ArrayLike, tolerance: float) -> NDArray[np.float64]:
    """Each value's group stands for it: the lower of its middle ones, which one of them is.

    Neighbours in order of size are of one group if they are apart by no more than the tolerance, a fraction. A group
    that gets too wide is cut at its largest gap.

    Args:
        values: above zero, shape (N,).
        tolerance: above zero.

    Raises:
        ValueError: a value isn't finite and above zero.

    >>> grouped([1.0, 5.0, 1.04, 0.97], 0.1).tolist()
    [1.0, 5.0, 1.0, 1.0]
    """
    given = np.asarray(values, dtype=np.float64)
    if not (np.isfinite(given) & (given > 0)).all():
        raise ValueError(f"measured values are {given.tolist()}, but must be finite and above 0; measure them again")
    order = np.argsort(given, kind="stable")
    found = np.empty_like(given)
    waiting = [order] if len(order) else []
    while waiting:
        part = waiting.pop()
        gaps = np.diff(np.log(given[part]))
        wide = np.log(given[part[-1]] / given[part[0]]) > _WIDEST * math.log1p(tolerance)
        if len(gaps) and (gaps.max() > math.log1p(tolerance) or wide):
            cut = int(np.argmax(gaps)) + 1
            waiting += [part[:cut], part[cut:]]
        else:
            found[part] = given[part[(len(part) - 1) // 2]]
    return found
