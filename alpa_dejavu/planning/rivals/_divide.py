"""Ways to divide: numbers by their divisors, clusters by the order of their hosts."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from alpa_dejavu.problem import Cluster, host_kinds

__all__ = ["divisors", "host_orders", "orders_of"]

_SEED = 0


def divisors(number: int) -> list[int]:
    """Returns all divisors of a number, ascending.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [n for n in range(1, number + 1) if number % n == 0]


def host_orders(cluster: Cluster, at_most: int) -> list[tuple[int, ...]]:
    """Returns different orders of a cluster's hosts, the cluster's own first; hosts of a kind are interchangeable.

    If there are more than `at_most` orders, `at_most` of them are drawn by a fixed seed.
    """
    kinds = host_kinds(cluster)
    of_kind = {kind: [host for host, other in enumerate(kinds) if other == kind] for kind in set(kinds)}
    found = []
    for order in orders_of(kinds, at_most):
        left = {kind: iter(hosts) for kind, hosts in of_kind.items()}
        found.append(tuple(next(left[kind]) for kind in order))
    return found


def orders_of(kinds: tuple[int, ...], at_most: int) -> list[tuple[int, ...]]:
    """Returns the distinct permutations of a tuple, itself first; `at_most` drawn by a seed if there are more.

    >>> orders_of((0, 0, 1), 10)
    [(0, 0, 1), (0, 1, 0), (1, 0, 0)]
    """
    counts = Counter(kinds)
    different = math.factorial(len(kinds)) // math.prod(math.factorial(count) for count in counts.values())
    found = {tuple(kinds): None}
    if different <= at_most:
        found |= dict.fromkeys(_all(dict(sorted(counts.items()))))
        return list(found)
    rng = np.random.default_rng(_SEED)
    while len(found) < at_most:
        found[tuple(rng.permutation(kinds).tolist())] = None
    return list(found)


def _all(counts: dict[int, int]) -> list[tuple[int, ...]]:
    """Every order of so many of each, ascending."""
    if not any(counts.values()):
        return [()]
    return [
        (kind, *rest) for kind, count in counts.items() if count for rest in _all({**counts, kind: count - 1})
    ]
