"""Ways to order and to group a cluster's hosts, where hosts of a kind are interchangeable."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from alpa_dejavu.clusters.host_classes import members_of_kinds
from alpa_dejavu.problem import Cluster, host_kinds

Counts: TypeAlias = tuple[int, ...]
"""How many hosts of each kind a group has."""
Grouping: TypeAlias = tuple[Counts, ...]
_PARTS = 16
"""Up to so many unlike groups are made of a cluster's hosts; of more hosts some numbers are left out."""
_SEED = 0


def host_orders(cluster: Cluster, hosts: Sequence[int], at_most: int) -> list[tuple[int, ...]]:
    """Returns different orders of hosts, the given one first; `at_most` drawn by a seed. Hosts of a kind are alike."""
    kinds = host_kinds(cluster)
    orders = []
    for order in orders_of(tuple(kinds[host] for host in hosts), at_most):
        left = {kind: iter([host for host in hosts if kinds[host] == kind]) for kind in set(order)}
        orders.append(tuple(next(left[kind]) for kind in order))
    return orders


def orders_of(kinds: tuple[int, ...], at_most: int) -> list[tuple[int, ...]]:
    """Returns the distinct permutations of a tuple, itself first; `at_most` drawn by a seed if there are more.

    >>> orders_of((0, 0, 1), 10)
    [(0, 0, 1), (0, 1, 0), (1, 0, 0)]
    """
    counts = Counter(kinds)
    orders = {kinds: None}
    if math.factorial(len(kinds)) // math.prod(map(math.factorial, counts.values())) <= at_most:
        return list(orders | dict.fromkeys(_permutations(dict(sorted(counts.items())))))
    rng = np.random.default_rng(_SEED)
    while len(orders) < at_most:
        orders[tuple(rng.permutation(kinds).tolist())] = None
    return list(orders)


def _permutations(counts: dict[int, int]) -> list[tuple[int, ...]]:
    if not any(counts.values()):
        return [()]
    kinds = [kind for kind, count in counts.items() if count]
    return [(kind, *rest) for kind in kinds for rest in _permutations({**counts, kind: counts[kind] - 1})]


def groupings(cluster: Cluster, at_most: int) -> list[Grouping]:
    """Returns different ways to divide all hosts of a cluster into two or more groups, each as the numbers of hosts of
    each kind in its groups.

    The first have each kind in a group of its own, and each host. The others follow by their number of groups, few
    groups first, until there are `at_most`. Where there are many hosts, a group has only certain numbers of a kind:
    powers of two, or one, half and all of them.

    >>> from alpa_dejavu.testing import example_cluster
    >>> groupings(example_cluster(num_hosts=4), 10)
    [((1,), (1,), (1,), (1,)), ((3,), (1,)), ((2,), (2,)), ((2,), (1,), (1,))]
    """
    whole = tuple(map(len, members_of_kinds(cluster)))
    if sum(whole) < 2 or cluster.shared:
        return []
    alone = [tuple(int(kind == other) for other in range(len(whole))) for kind in range(len(whole))]
    kinds = tuple(tuple(count * number for count in counts) for counts, number in zip(alone, whole, strict=True))
    hosts = tuple(counts for counts, number in zip(alone, whole, strict=True) for _ in range(number))
    parts = _parts(whole)
    by_number = itertools.chain.from_iterable(_divided(whole, parts, number) for number in range(2, sum(whole) + 1))
    every = itertools.chain([kinds] if len(kinds) > 1 else [], [hosts], by_number)
    return list(itertools.islice(dict.fromkeys(itertools.islice(every, 2 * at_most)), at_most))


def _parts(whole: Counts) -> list[Counts]:
    """Returns the numbers of hosts that a group may have, the most first."""
    rules = (
        lambda most: set(range(most + 1)),
        lambda most: {0, most, *(2**n for n in range(most.bit_length()))},
        lambda most: {0, 1, most // 2, most},
        lambda most: {0, 1, most},
    )
    by_rule = [[sorted(rule(most), reverse=True) for most in whole] for rule in rules]
    few = next((amounts for amounts in by_rule if math.prod(map(len, amounts)) <= _PARTS), by_rule[-1])
    return [counts for counts in itertools.product(*few) if any(counts)]


def _divided(left: Counts, parts: list[Counts], number: int) -> Iterator[Grouping]:
    """Yields the ways to divide these hosts into so many groups, no group before one that is earlier in the list."""
    if number == 1:
        if left in parts:
            yield (left,)
        return
    for n, part in enumerate(parts):
        rest, others = tuple(a - b for a, b in zip(left, part, strict=True)), number - 1
        # The parts that follow have as many hosts of the first kind at most, and at least one host.
        if min(rest) >= 0 and rest[0] <= others * part[0] and sum(rest) >= others:
            yield from ((part, *more) for more in _divided(rest, parts[n:], others))


def hosts_of(cluster: Cluster, grouping: Grouping) -> list[list[int]]:
    """Returns the indices of the hosts of each group, kind by kind, the first hosts of each kind in the first group."""
    left = [iter(hosts) for hosts in members_of_kinds(cluster)]
    return [
        list(itertools.chain.from_iterable(itertools.islice(hosts, n) for hosts, n in zip(left, counts, strict=True)))
        for counts in grouping
    ]
