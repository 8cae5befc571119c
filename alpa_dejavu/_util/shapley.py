"""Shapley values: what each of some changes is worth, on the mean over the orders in which they can be made."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence

MOST_EXACT = 6
"""Up to so many changes are taken in all orders, more of them in drawn ones."""
DRAWN = 16
"""So many orders are drawn, half of them the others reversed."""
SEED = 0


def shapley(count: int, value: Callable[[frozenset[int]], float | None]) -> list[float] | None:
    """Returns the Shapley value of each of the changes 0, 1, ... `count` - 1: what making it adds, on the mean over the
    orders in which all can be made.

    Their sum is the value of making all changes less that of making none. Up to 6 changes are made in all orders, more
    in 16 drawn ones.

    Each order of changes is taken with its reverse, so that undoing the changes is worth the negative, to the last bit.

    Args:
        count: how many changes there are, at least one.
        value: a function that gives the value of having made a set of changes; None: that isn't known, and orders that
            pass through the set are left out. It is called once for each set, first for none and for all of them.

    Returns:
        The Shapley values, in seconds or whatever `value` gives; None if no order is left.

    References:
        Shapley, A value for n-person games, 1953.
        Mitchell, Cooper, Frank and Holmes, Sampling Permutations for Shapley Value Estimation, JMLR 2022 (antithetic).

    >>> shapley(2, lambda made: float(len(made) ** 2))
    [2.0, 2.0]
    """
    cached = functools.cache(value)
    if cached(frozenset()) is None or cached(frozenset(range(count))) is None:
        return None
    worth: list[list[float]] = [[] for _ in range(count)]
    for order in _orders(count):
        values = _values(order, cached)
        if values is not None:
            for n, change in enumerate(order):
                worth[change].append(values[n + 1] - values[n])
    return [math.fsum(added) / len(added) for added in worth] if worth[0] else None


def _orders(count: int) -> Iterator[Sequence[int]]:
    if count <= MOST_EXACT:
        yield from itertools.permutations(range(count))
        return
    chance = random.Random(SEED)
    for _ in range(DRAWN // 2):
        order = chance.sample(range(count), count)
        yield order
        yield order[::-1]


def _values(order: Sequence[int], value: Callable[[frozenset[int]], float | None]) -> list[float] | None:
    """The value before each change and after the last; None where one can't be told."""
    values: list[float] = []
    for length in range(len(order) + 1):
        worth = value(frozenset(order[:length]))
        if worth is None:
            return None
        values.append(worth)
    return values
