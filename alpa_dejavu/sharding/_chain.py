"""The layouts at the boundaries of chains of layers that cost least together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import NoShardingError


def cheapest_chains(costs: Sequence[NDArray[np.float64]]) -> NDArray[np.intp]:
    """Returns the layout at each boundary of all chains i..j of L layers, shape (L, L, L+1), by dynamic programming.

    Boundary n is the one before layer n; -1 where a chain has no such boundary.

    Args:
        costs: for each layer the cost of each pair of layouts before (rows) and after it (columns), shape (K, K).

    Raises:
        NoShardingError: if no choice of layouts is possible for one of them.

    >>> cheapest_chains([np.array([[1, 0], [2, 3]]), np.array([[0, 5], [3, 3]])])[0]
    array([[ 0,  1, -1],
           [ 0,  0,  0]])
    """
    size, count = len(costs), costs[0].shape[0]
    found = np.full((size, size, size + 1), -1, dtype=np.intp)
    best = np.zeros((size, count))  # by the layer that a chain begins with, and the layout that it ends in
    froms = []
    for end, cost in enumerate(costs):
        total = best[: end + 1, :, None] + cost
        froms.append(total.argmin(axis=1))
        best[: end + 1] = total.min(axis=1)
        if not np.isfinite(best[: end + 1]).any(axis=1).all():
            raise NoShardingError(
                "no layouts at layers' boundaries go together on this mesh; relax the sharding options"
            )
        found[: end + 1, end, end + 1] = best[: end + 1].argmin(axis=1)
        for n in range(end, -1, -1):
            begins = np.arange(n + 1)
            found[begins, end, n] = froms[n][begins, found[begins, end, n + 1]]
    return found
