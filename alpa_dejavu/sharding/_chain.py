"""The layouts at the boundaries of a chain of layers that cost least together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def cheapest_chain(costs: Sequence[NDArray[np.float64]]) -> list[int]:
    """The layout at each of the L+1 boundaries of L layers, by dynamic programming.

    Args:
        costs: for each layer the cost of each pair of layouts before (rows) and after it (columns), shape (K, K).

    Raises:
        ValueError: if no choice of layouts is possible.

    >>> cheapest_chain([np.array([[1, 0], [2, 3]]), np.array([[0, 5], [3, 3]])])
    [0, 0, 0]
    """
    best = np.zeros(costs[0].shape[0])
    froms = []
    for cost in costs:
        total = best[:, None] + cost
        froms.append(np.argmin(total, axis=0))
        best = total.min(axis=0)
    if not np.isfinite(best).any():
        raise ValueError("no layouts at the layers' boundaries go together on this mesh: relax the sharding options")
    layouts = [int(np.argmin(best))]
    for came_from in reversed(froms):
        layouts.append(int(came_from[layouts[-1]]))
    return layouts[::-1]
