"""Predictions in log space as means and the ends of 90 % intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trials._trial_set import Predicted

_NORMAL = 1.6449
"""Standard deviations on each side that hold 90 % of a normal distribution."""


def from_logs(mean: NDArray[np.float64], spread: NDArray[np.float64], memory: Predicted | None = None) -> Predicted:
    """The medians as means, since errors are scored as shares, with ends as far as the spread says."""
    reach = _NORMAL * spread
    return Predicted(np.exp(mean), np.exp(mean - reach), np.exp(mean + reach), memory)
