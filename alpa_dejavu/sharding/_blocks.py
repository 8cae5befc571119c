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
        self._known: dict[tuple, tuple] = {}
        self._places: dict[int, np.ndarray] = {}
        self.steps = 0

    def once(self, step: Callable[..., Result], *arrays: object) -> Result:
        """Returns `step(*arrays)`, which is computed only if it was not asked for with these very arrays before.

        Neither the arrays nor the result may be changed afterwards.
        """
        key = (step, *map(id, arrays))
        self.steps += 1
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = (arrays, step(*arrays))  # the arrays are kept, so that their ids stay theirs
        result: Result = known[1]
        return result

    @property
    def repeated(self) -> int:
        """Returns how many computations were answered from the cache."""
        return self.steps - len(self._known)

    def places(self, count: int) -> np.ndarray:
        """Returns the array of 0, 1, ..., count - 1: the same object whenever the same count is asked for."""
        if count not in self._places:
            self._places[count] = np.arange(count)
        return self._places[count]


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the sum of two arrays."""
    return a + b


def turned(matrix: np.ndarray) -> np.ndarray:
    """Transposes a matrix of costs between the choices of two nodes, so that the nodes change places."""
    return np.ascontiguousarray(matrix.T)


def remapped(matrix: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Picks rows and columns of a matrix of costs by their indices; an index may come several times."""
    # These are small: the method takes a fraction of the time that indexing does.
    return matrix.take(columns, 1).take(rows, 0)


def picked(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns the values at the given indices of an array's first dimension."""
    return values[places]


def own(matrix: np.ndarray) -> np.ndarray:
    """Returns the diagonal of a square matrix: the cost of each choice of a node together with the same choice."""
    return np.ascontiguousarray(np.diagonal(matrix))


def affordable(costs: np.ndarray) -> np.ndarray:
    """Returns an array of costs with infinity in place of all that are INFINITY_COST (1e13) or more."""
    return np.where(costs >= INFINITY_COST, np.inf, costs)


def fold_into_one(cost: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Returns for each choice of a node's only neighbour the least cost of the node and of the edge between them.

    Args:
        cost: the cost of each of the node's choices, shape (K,).
        matrix: the cost of each pair of choices of the node and of its neighbour, shape (K, M).
    """
    return np.asarray((cost[:, None] + matrix).min(axis=0))


def fold_into_two(cost: np.ndarray, to_a: np.ndarray, to_b: np.ndarray) -> np.ndarray:
    """Returns for each pair of choices of a node's two neighbours the least cost of the node and of its two edges.

    Args:
        cost: the cost of each of the node's choices, shape (K,).
        to_a: the cost of each pair of choices of the node and of its first neighbour, shape (K, A).
        to_b: likewise of its second neighbour, shape (K, B).
    """
    return np.asarray((cost[:, None, None] + to_a[:, :, None] + to_b[:, None, :]).min(axis=0))


def undominated(cost: np.ndarray, *matrices: np.ndarray) -> np.ndarray:
    """Returns the indices of a node's choices worth keeping: the possible ones that no other kept one dominates.

    One choice dominates another if it is at least as good whatever the node's neighbours choose.

    Args:
        cost: the cost of each of the node's choices; infinite where it is impossible.
        *matrices: for each neighbour the cost of the node's choices (rows) with the neighbour's (columns).
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
