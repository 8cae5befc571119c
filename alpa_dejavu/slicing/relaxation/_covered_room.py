"""The room that cheaper ways leave: a way that leaves no more is needed by no plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["covered_room"]


def covered_room(weights: NDArray[np.float64], room: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns for each way to run a stage how many following stages some cheaper way that weighs no more allows.

    The ways, such as configs, are in the order of their costs. If several cheaper ways weigh no more, the largest of
    their numbers counts; if there is none, it is -1.

    Args:
        weights: shape (..., W), what a way adds to a sum.
        room: shape (..., W), how many stages may follow it for its memory's sake.

    >>> covered_room(np.array([1.0, 5.0, 2.0]), np.array([1, 3, 3])).tolist()
    [-1, 1, 1]
    """
    covered = np.full(weights.shape, -1, dtype=np.int64)
    for n in range(1, weights.shape[-1]):
        earlier = np.where(weights[..., :n] <= weights[..., n, None], room[..., :n], -1)
        covered[..., n] = earlier.max(axis=-1)
    return covered
