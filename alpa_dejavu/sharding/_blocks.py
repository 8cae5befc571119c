"""Cost arrays that are computed once for all blocks that are alike.

A model repeats its blocks, and the solver meets the same costs again in each of them. Every step from costs to costs
is remembered by the arrays that it took; it gives back the very same array for the next block, so that the steps after
it are known as well. The reduction of a repeated block is thereby worked out for the first block only.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from alpa_dejavu.sharding._options import INFINITY_COST

Result = TypeVar("Result")


class Blocks:
    """A cache of computations on arrays, by the identity of the arrays that they take."""

    def __init__(self) -> None:
        self._results: dict[tuple, tuple] = {}

    def once(self, step: Callable[..., Result], *arrays: object) -> Result:
        """Returns `step(*arrays)`, which is computed only if it was not asked for with these very arrays before.

        Neither the arrays nor the result may be changed afterwards.
        """
        key = (step, *map(id, arrays))
        entry = self._results.get(key)
        if entry is None:
            # The arrays are kept, so that their ids stay theirs.
            entry = self._results[key] = (arrays, step(*arrays))
        result: Result = entry[1]
        return result

    def __len__(self) -> int:
        """Returns how many computations there were."""
        return len(self._results)


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a + b


def turned(matrix: np.ndarray) -> np.ndarray:
    """Returns a matrix of costs between the choices of two nodes with the nodes in each other's place."""
    return np.ascontiguousarray(matrix.T)


def remapped(matrix: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns rows and columns of a matrix of costs by their indices; an index may come several times."""
    # These are small: the method takes a fraction of the time that indexing does.
    return matrix.take(columns, 1).take(rows, 0)


def picked(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    return values[places]


def own(matrix: np.ndarray) -> np.ndarray:
    """Returns the cost of each choice of a node together with the same choice: the diagonal of a square matrix."""
    return np.ascontiguousarray(np.diagonal(matrix))


def affordable(costs: np.ndarray) -> np.ndarray:
    """Returns costs with infinity in place of all that are INFINITY_COST or more."""
    return np.where(costs >= INFINITY_COST, np.inf, costs)


def fold_into_one(cost: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Returns for each choice of a node's only neighbour the least cost of the node, (K,), and of the edge, (K, M)."""
    return np.asarray((cost[:, None] + matrix).min(axis=0))


def fold_into_two(cost: np.ndarray, to_a: np.ndarray, to_b: np.ndarray) -> np.ndarray:
    """Returns for each pair of choices of a node's two neighbours the least cost of the node and of its two edges."""
    return np.asarray((cost[:, None, None] + to_a[:, :, None] + to_b[:, None, :]).min(axis=0))


def undominated(cost: np.ndarray, *matrices: np.ndarray) -> np.ndarray:
    """Returns the indices of a node's choices worth keeping: the possible ones that no other kept one dominates.

    One choice dominates another if it is at least as good whatever the node's neighbours choose: `matrices` have for
    each neighbour the cost of the node's choices (rows) with the neighbour's (columns).
    """
    possible = np.isfinite(cost)
    for matrix in matrices:
        possible &= np.isfinite(matrix.min(axis=1))
    if not possible.all() and possible.any():
        places = np.flatnonzero(possible)
        return np.asarray(places[undominated(cost[places], *(matrix[places] for matrix in matrices))])
    big = 1e30
    costs = np.minimum(cost, big)
    worst = costs[:, None] - costs[None, :]  # by how much choice i may be dearer than choice j
    for matrix in matrices:
        bounded = np.minimum(matrix, big)
        worst = worst + (bounded[:, None, :] - bounded[None, :, :]).max(axis=2)
    keep = np.ones(len(cost), dtype=bool)
    for j in range(len(cost) - 1, -1, -1):
        better = keep & (worst[:, j] <= 0)
        better[j] = False
        if better.any():
            keep[j] = False
    return np.flatnonzero(keep)
