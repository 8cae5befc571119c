"""The choice of the next measurement: the one that the fit so far is least sure of.

The spread of each candidate's prediction comes from the covariance of the fitted figures (and of what the candidate's
family has of its own, which nothing but a measurement of that family tells). Measuring the largest one is the greedy
rule for a G-optimal design, which makes the worst prediction as sure as so many measurements can.

References:
    Kiefer and Wolfowitz, The equivalence of two extremum problems, Canadian Journal of Mathematics 12, 1960.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike

from alpa_dejavu._util.ties import first_least

__all__ = ["ENOUGH", "next_measurement"]

ENOUGH = 0.05
"""The spread under which nothing needs to be measured any more."""


def next_measurement(spread: ArrayLike, done: Collection[int], enough: float = ENOUGH) -> int | None:
    """The candidate to measure, the first of equal ones, or None if none is left whose spread is above `enough`.

    Args:
        spread: of the logarithm of each candidate's prediction, shape (N,).
        done: candidates that can't be chosen: they were measured, or can't be.
        enough: a spread that needs no measurement.

    >>> next_measurement([0.3, 0.1, 0.2], done=[0])
    2
    >>> next_measurement([0.3, 0.01, 0.02], done=[0]) is None
    True
    """
    left = np.array(spread, dtype=np.float64)
    left[list(done)] = -np.inf
    best = int(first_least(-left)) if left.size else 0
    return best if left.size and left[best] > enough else None
