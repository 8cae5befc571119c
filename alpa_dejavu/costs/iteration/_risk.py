"""How probable it is that a plan runs out of memory, and whether so small a risk can be known."""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu.costs.iteration._fitted import Fitted
from alpa_dejavu.costs.iteration._hierarchical import Array, Rows

__all__ = ["MemoryRisk", "memory_risk"]

_NUM_ANGLES = 20000


@final
@dataclasses.dataclass(frozen=True, eq=False)
class MemoryRisk:
    """The risk that each of N plans runs out of memory, and which plans fit by it.

    Attributes:
        probability: that each plan runs out of memory, shape (N,).
        fits: whether that is at most the chosen risk, shape (N,).
        needed_bytes: the bytes that each plan exceeds only with the chosen risk, shape (N,).
        is_known: whether enough was measured to know a risk as small as the chosen one.
        note: which risk was chosen, whether it is known, and what margin follows; for a report.
    """

    probability: Array
    fits: NDArray[np.bool_]
    needed_bytes: Array
    is_known: bool
    note: str


def memory_risk(peak: Fitted, rows: Rows, capacity_bytes: ArrayLike, risk: float = 0.01) -> MemoryRisk:
    """Returns the risk that each row's plan runs out of memory, under a fitted model of peaks.

    The errors have the tails of Student's t, with as many degrees of freedom as independent groups were measured less
    one. A risk smaller than one over the number of residuals can't be read from them: then the tails are those of two
    degrees of freedom at most, which ask for about three times the margin at 1 %.

    Args:
        peak: the fitted model of the peak bytes of memory.
        rows: the columns that it takes.
        capacity_bytes: the memory that a device has, one number for all or of shape (N,).
        risk: the probability of running out that is accepted, above 0 and below 1/2.

    Raises:
        ValueError: another risk, or a capacity that isn't positive.
    """
    if not 0 < risk < 0.5:
        raise ValueError(f"memory risk: risk is {risk}, but must be above 0 and below 0.5; the default is 0.01")
    capacity = np.asarray(capacity_bytes, dtype=np.float64)
    if not (capacity > 0).all():
        raise ValueError(f"memory risk: capacity_bytes is {capacity.min()}, but must be positive")
    wanted = math.ceil(1 / risk)
    is_known = peak.num_measured >= wanted
    freedom = max(peak.num_groups - 1, 1)
    if not is_known:
        freedom = min(freedom, 2)
    mean, spread = peak.predict(rows)
    margins, tails = students_t(freedom)
    probability = np.interp((np.log(capacity) - mean) / spread, margins, tails)
    needed = np.exp(mean + np.interp(-risk, -tails, margins) * spread)
    note = f"plans are taken under a risk of {risk:.2%} of running out of memory"
    if not is_known:
        note += (
            f"; {peak.num_measured} residuals in {peak.num_groups} groups are too few to know a risk that small "
            f"({wanted} are needed), so the margin is that of Student's t with {freedom} degrees of freedom"
        )
    return MemoryRisk(np.asarray(probability), np.asarray(probability <= risk), np.asarray(needed), is_known, note)


def students_t(freedom: int) -> tuple[Array, Array]:
    """Returns points of Student's t distribution, and for each the probability of a larger value. With
    x = sqrt(freedom) tan(a) its density is cos(a)^(freedom - 1).

    >>> points, more = students_t(2)
    >>> bool(abs(np.interp(6.9646, points, more) - 0.01) < 1e-5)
    True
    """
    angle = np.linspace(-np.pi / 2, np.pi / 2, _NUM_ANGLES + 1)[1:-1]
    below = np.cumsum(np.cos(angle) ** (freedom - 1))
    below = (below - 0.5 * np.cos(angle) ** (freedom - 1)) / below[-1]
    return np.sqrt(freedom) * np.tan(angle), 1 - below
