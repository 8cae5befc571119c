"""Sums over all ranges of layers at once: arrays of shape (L, L), where entry (i, j) is about layers i..j."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.compiled import compiled

FloatArray = NDArray[np.float64]


def range_sum(values: Sequence[float] | FloatArray) -> FloatArray:
    """Returns the matrix whose entry (i, j) is the sum of values i..j, zero for j < i; by prefix sums. Values of shape
    (..., L) make a matrix each, of shape (..., L, L).

    >>> range_sum([1, 2, 4])
    array([[1., 3., 7.],
           [0., 2., 6.],
           [0., 0., 4.]])
    """
    rows = np.asarray(values, dtype=np.float64)
    size = rows.shape[-1]
    prefix = np.zeros((*rows.shape[:-1], size + 1))
    np.cumsum(rows, axis=-1, out=prefix[..., 1:])
    return np.where(_upper(size), prefix[..., None, 1:] - prefix[..., :-1, None], 0.0)


def stage_sum(values: Sequence[float] | FloatArray, of_stages: NDArray[np.signedinteger] | None = None) -> FloatArray:
    """Returns the matrix whose entry (i, j) is the sum over layers i..j of a value that may differ by the stage that a
    layer is in.

    Args:
        values: shape (..., V) for V variants, a variant being one way to shard one layer: the value of each. The
            matrices have shape (..., L, L).
        of_stages: shape (L, L, L) for L layers: which variant each layer n has in the stage of layers i..j, -1 for
            layers outside of the stage; None: each layer has one variant, so V is L.

    >>> of_stages = np.array([[[2, -1], [0, 1]], [[-1, -1], [-1, 1]]])
    >>> stage_sum([1, 2, 5], of_stages)
    array([[5., 3.],
           [0., 2.]])
    """
    if of_stages is None:
        return range_sum(values)
    rows = np.asarray(values, dtype=np.float64)
    of_variants = np.require(rows.reshape(-1, rows.shape[-1]).T, requirements=("C", "W"))
    sums = _variant_sums(of_variants, *new_variants(of_stages))
    return sums.reshape(*rows.shape[:-1], *of_stages.shape[:2])


_NEW: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}


def new_variants(of_stages: NDArray[np.signedinteger]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns for each stage of layers i..j, shape (L, L), the first layer whose variant isn't that of the stage of
    layers i..j-1, and the variants from there on, one stage after the other; of each array these are looked for once.

    >>> of_stages = np.array([[[2, -1], [2, 1]], [[-1, -1], [-1, 1]]])
    >>> [part.tolist() for part in new_variants(of_stages)]
    [[[0, 1], [0, 1]], [2, 1, 1]]
    """
    key = id(of_stages)
    if key not in _NEW:
        weakref.finalize(of_stages, _NEW.pop, key)
        _NEW[key] = _first_new(of_stages := np.require(of_stages, np.int64, ("C", "W")))
    return _NEW[key]


def with_new_variants(new: NDArray[np.signedinteger], variants: NDArray[np.signedinteger]) -> NDArray[np.int64]:
    """Returns the variant of each layer in each stage, shape (L, L, L), -1 outside of it, of which `new_variants` tells
    so much; ValueError where these don't fit each other.
    """
    size = len(new)
    first, last = np.triu_indices(size)
    begins = new[first, last]
    if (begins < first).any() or (begins > last).any() or (last + 1 - begins).sum() != len(variants):
        raise ValueError(f"there are {len(variants)} new variants of {size} layers in all stages, which isn't so many")
    counts = last + 1 - begins
    stage, nth = np.repeat(np.arange(len(counts)), counts), np.arange(len(variants))
    layer = begins[stage] + nth - (np.cumsum(counts) - counts)[stage]
    of_stages = np.full((size, size, size), -1, np.int64)
    of_stages[first[stage], last[stage], layer] = variants
    for n in range(1, size):
        np.copyto(of_stages[:, n], of_stages[:, n - 1], where=np.arange(size) < new[:, n, None])
    return of_stages


@compiled("(i8[:,:,::1],)", may_wait=True)
def _first_new(of_stages: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    size, count = len(of_stages), 0
    new = np.zeros((size, size), np.int64)
    for first in range(size):
        for last in range(first, size):
            layer = first
            while layer < last and of_stages[first, last, layer] == of_stages[first, last - 1, layer]:
                layer += 1
            new[first, last] = layer
            count += last + 1 - layer
    variants, place = np.empty(count, np.int64), 0
    for first in range(size):
        for last in range(first, size):
            for layer in range(new[first, last], last + 1):
                variants[place] = of_stages[first, last, layer]
                place += 1
    return new, variants


@compiled("(f8[:,::1], i8[:,::1], i8[::1])", may_wait=True)
def _variant_sums(values: FloatArray, new: NDArray[np.int64], variants: NDArray[np.int64]) -> FloatArray:
    """Returns the sums of several values of variants, shape (V, M), over the layers of each stage; (M, L, L)."""
    size, several, place = len(new), values.shape[1], 0
    sums = np.zeros((several, size, size))
    before = np.zeros((size + 1, several))
    for first in range(size):
        before[first] = 0.0
        for last in range(first, size):
            for layer in range(new[first, last], last + 1):
                for column in range(several):
                    before[layer + 1, column] = before[layer, column] + values[variants[place], column]
                place += 1
            for column in range(several):
                sums[column, first, last] = before[last + 1, column]
    return sums


@functools.cache
def _upper(size: int) -> NDArray[np.bool_]:
    """Where j is at least i."""
    return np.triu(np.ones((size, size), dtype=np.bool_))


def range_max(values: Sequence[float]) -> FloatArray:
    """Returns the matrix whose entry (i, j) is the largest of values i..j, zero for j < i.

    >>> range_max([1, 4, 2])
    array([[1., 4., 4.],
           [0., 4., 4.],
           [0., 0., 2.]])
    """
    rows = np.broadcast_to(np.asarray(values, dtype=np.float64), (len(values), len(values)))
    return np.maximum.accumulate(np.triu(rows), axis=1)


def touched_sum(num_layers: int, items: Iterable[tuple[float, int, Sequence[int]]]) -> FloatArray:
    """Returns the matrix whose entry (i, j) is the sum of the amounts of the items, such as tensors, that have a user
    among layers i..j; an item counts once there, however many of its users are.

    Args:
        num_layers: the number of layers, L; the matrix has shape (L, L).
        items: (amount, from, users) of each item; its users are layers, ascending, and it counts only in ranges that
            begin at layer `from` or later.

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
