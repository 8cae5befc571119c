"""Ties are broken by a stated order: what differs by a processor's last bits alone counts as equal, and comes first.

Linear algebra libraries and exponentials round differently on different processors, and sums by the order of their
terms. A choice between equals that went by that would give the same task another plan on another machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray

TOLERANCE = 1e-9
"""The share of a value by which another may be apart from it and still be equal."""
_SPLITTER = 2.0**17 + 1
"""Leaves 36 of the 53 bits: far more than is known of any second, and far fewer than roundoff reaches."""

_Item = TypeVar("_Item")


def rounded(values: FloatArray) -> FloatArray:
    """Returns finite values rounded to 36 significant bits, so that sums of the same terms in another order become
    equal.

    The relative error is 1.5e-11 at most.

    References:
        Dekker, A floating-point technique for extending the available precision, Numerische Mathematik 18, 1971.

    >>> terms = np.array([0.1, 0.2, 0.3])
    >>> terms.sum() == terms[::-1].sum(), rounded(terms).sum() == rounded(terms)[::-1].sum()
    (False, True)
    """
    scaled = values * _SPLITTER
    return np.asarray(scaled - (scaled - values))


def first_least(values: FloatArray) -> NDArray[np.intp]:
    """Returns along the last axis the index of the first value that is the least, or equal to it within 1e-9 of it.

    >>> first_least(np.array([[3.0, 1.0 + 1e-15, 1.0], [0.0, 1.0, 0.0]]))
    array([1, 0])
    """
    bound = values.min(axis=-1, keepdims=True)
    return np.asarray((values <= bound + TOLERANCE * np.abs(bound)).argmax(axis=-1))


def ordered(items: Iterable[_Item], key: Callable[[_Item], float]) -> list[_Item]:
    """Returns items sorted by a key, the least first; those whose keys are equal within 1e-9 keep their order.

    >>> ordered([2.0, 1.0 + 1e-15, 1.0], float)
    [1.000000000000001, 1.0, 2.0]
    """
    listed = list(items)
    values = [key(item) for item in listed]
    group, bound = dict[int, int](), -math.inf
    for n in sorted(range(len(listed)), key=values.__getitem__):
        if not group or values[n] > bound:
            bound, first = values[n] + TOLERANCE * abs(values[n]), len(group)
        group[n] = first
    return [listed[n] for n in sorted(range(len(listed)), key=group.__getitem__)]


def least(items: Iterable[_Item], key: Callable[[_Item], float]) -> _Item:
    """Returns the first item whose key is the least, or equal to it within 1e-9 of it."""
    listed = list(items)
    return listed[int(first_least(np.array([key(item) for item in listed])))]
