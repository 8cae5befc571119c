"""Beginnings of slicings that reach the same layer, and which of them are not worth going on with."""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np

from alpa_dejavu.slicing._choices import FloatArray, IntArray


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Labels:
    """N partial slicings, each of which cuts the first layers into stages, as arrays.

    Attributes:
        used: shape (N, R), how much they use of each of R resources, such as devices of a kind of host.
        group: shape (N,), the number of the group of submeshes with equal links that the last stage is on.
        may_follow: shape (N,), how many stages may still follow for memory's sake.
        weight: shape (N,), what the objective sums over stages, so far.
        bound: shape (N,), a lower bound on that sum for any whole slicing that begins so.
        origin: shape (N, 2), the layer where the last stage begins, and which partial slicing there it follows.
        choice: shape (N, 2), the last stage's class of submeshes, and which of its submeshes and configs it has.
    """

    used: IntArray
    group: IntArray
    may_follow: IntArray
    weight: FloatArray
    bound: FloatArray
    origin: IntArray
    choice: IntArray

    def __len__(self) -> int:
        return len(self.weight)

    def of(self, which: IntArray | slice) -> Labels:
        """Returns some of the partial slicings (of first layers into stages), by their indices."""
        return Labels(*(getattr(self, name)[which] for name in _NAMES))


_NAMES = tuple(field.name for field in dataclasses.fields(Labels))


def joined(parts: list[Labels]) -> Labels:
    """Returns the partial slicings (of first layers into stages) of all parts as one `Labels`, in order."""
    return Labels(*(np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES))


def undominated(labels: Labels, available: IntArray) -> Labels:
    """Returns, of partial slicings that use equally much of each resource and end with the same group of submeshes, the
    cheapest; dearer ones stay if more stages may follow them.

    `available` has how much there is of each resource, such as devices of a kind of host.
    """
    words = _words(np.column_stack([labels.used, labels.group]), [*available.tolist(), int(labels.group.max())])
    order = np.lexsort((-labels.may_follow, labels.weight, *words))
    new = np.zeros(len(order), dtype=np.bool_)
    new[0] = True
    for word in words:
        new[1:] |= np.diff(word[order]) != 0
    run = np.cumsum(new)
    step = int(labels.may_follow.max()) + 1
    most = np.maximum.accumulate(run * step + labels.may_follow[order])
    more = np.diff(most, prepend=-1) > 0
    return labels.of(order[more])


def _words(columns: IntArray, greatest: list[int]) -> list[IntArray]:
    """Whole numbers that are equal where the rows are, as few as 62 bits each allow."""
    words: list[IntArray] = []
    capacity = math.inf
    for column, size in zip(columns.T, greatest, strict=True):
        capacity *= size + 1
        if capacity >= 2**62:
            words.append(column.copy())
            capacity = size + 1
        else:
            words[-1] = words[-1] * (size + 1) + column
    return words
