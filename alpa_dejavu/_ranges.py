"""Sums over all ranges of layers at once: arrays of shape (L, L), where entry (i, j) is about layers i..j."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def range_sum(values: Sequence[float] | FloatArray) -> FloatArray:
    """Entry (i, j) is the sum of values i..j, zero for j < i; by prefix sums.

    >>> range_sum([1, 2, 4])
    array([[1., 3., 7.],
           [0., 2., 6.],
           [0., 0., 4.]])
    """
    size = len(values)
    prefix = np.zeros(size + 1)
    np.cumsum(values, out=prefix[1:])
    return np.where(_upper(size), prefix[None, 1:] - prefix[:-1, None], 0.0)


def stage_sum(values: Sequence[Sequence[float]] | FloatArray) -> FloatArray:
    """Entry (i, j) is the sum over layers i..j, where the layers at its ends may count otherwise than those in between.

    Args:
        values: what each layer counts between two others, at the beginning of a range of several layers, at the end of
            one, and as a range of its own; shape (4, L). Shape (1, L): it counts the same everywhere.

    >>> stage_sum([[1, 1, 1], [2, 2, 2], [5, 5, 5], [9, 9, 9]])
    array([[9., 7., 8.],
           [0., 9., 7.],
           [0., 0., 9.]])
    """
    inner, *ends = np.asarray(values, dtype=np.float64)
    total = range_sum(inner)
    if not ends:
        return total
    first, last, alone = ends
    found: FloatArray = np.triu(total + (first - inner)[:, None] + (last - inner)[None, :], 1)
    found += np.diag(alone)
    return found


@functools.cache
def _upper(size: int) -> NDArray[np.bool_]:
    """Where j is at least i."""
    return np.triu(np.ones((size, size), dtype=np.bool_))


def range_max(values: Sequence[float]) -> FloatArray:
    """Entry (i, j) is the largest of values i..j, zero for j < i.

    >>> range_max([1, 4, 2])
    array([[1., 4., 4.],
           [0., 4., 4.],
           [0., 0., 2.]])
    """
    rows = np.broadcast_to(np.asarray(values, dtype=np.float64), (len(values), len(values)))
    return np.maximum.accumulate(np.triu(rows), axis=1)


def touched_sum(num_layers: int, items: Iterable[tuple[float, int, Sequence[int]]]) -> FloatArray:
    """Entry (i, j) is the sum over items that have a user in i..j, each counted once however many it has.

    Args:
        num_layers: L.
        items: (amount, from, users): users are layers, ascending; only ranges that begin at `from` or later count.

    >>> touched_sum(3, [(5, 0, (0, 2))])
    array([[5., 5., 5.],
           [0., 0., 5.],
           [0., 0., 5.]])
    """
    # An item is counted at the first of its users in the range: for user u after the one before it, that is every range
    # that begins in (before, u] and ends at u or later.
    steps = np.zeros((num_layers + 1, num_layers))
    for amount, start, users in items:
        before = start - 1
        for user in users:
            if user > before:
                steps[before + 1, user] += amount
                steps[user + 1, user] -= amount
                before = user
    return np.cumsum(np.cumsum(steps, axis=0)[:num_layers], axis=1)
