"""The parts of a cluster that a plan may use when it leaves hosts out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from alpa_dejavu.clusters.host_classes import members_of_kinds
from alpa_dejavu.planning.search.given_stages import part_of
from alpa_dejavu.problem import Cluster

__all__ = ["fewer_hosts", "numbers_of_hosts"]

_ALL = 64
"""Up to so many choices of hosts are all tried."""
_FEW_HOSTS = 8
"""Up to so many alike hosts every smaller number is looked at; of more, one less and about powers of two."""


def fewer_hosts(cluster: Cluster, every: bool = False) -> list[Cluster]:
    """Returns smaller clusters that leave out hosts of a cluster, largest first; none where devices share one CPU.

    If all hosts are alike, there is a cluster of each smaller number of hosts; where they are more than eight, only of
    one host less, and of numbers that are a power of two or three times a power of two. If hosts are unlike, one host
    of a kind is left out at a time, or all hosts of some kinds. With `every` there are more clusters, for plans that
    are to be cheap: every choice of how many hosts of each kind, if there are few such choices.

    >>> from alpa_dejavu.clusters import named_cluster
    >>> [len(part.hosts) for part in fewer_hosts(named_cluster("p3.16xlarge", 16))]
    [15, 12, 8, 6, 4, 3, 2, 1]
    """
    if cluster.shared:
        return []
    members = members_of_kinds(cluster)
    whole = tuple(map(len, members))
    if every:
        counts = numbers_of_hosts(cluster)
    elif len(members) == 1:
        counts = [(n,) for n in range(1, whole[0]) if whole[0] <= _FEW_HOSTS or _near_power(n) or n == whole[0] - 1]
    else:
        less = [tuple(n - (kind == k) for k, n in enumerate(whole)) for kind in range(len(whole))]
        counts = [*less, *_whole_kinds(whole)]
    found = dict.fromkeys(one for one in counts if any(one) and one != whole)
    parts = [
        part_of(cluster, sorted(host for hosts, n in zip(members, one, strict=True) for host in hosts[:n]))
        for one in found
    ]
    return sorted(parts, key=lambda part: -part.num_devices)


def _near_power(number: int) -> bool:
    """Returns whether a number is 1, 2, 3, 4, 6, 8, 12, 16 …: a power of two, or three times one."""
    return number.bit_count() == 1 or (number % 3 == 0 and (number // 3).bit_count() == 1)


def _whole_kinds(whole: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the numbers of hosts where some kinds are whole: each choice of few kinds, each one alone of many."""
    kinds = range(len(whole))
    chosen = range(1, 2 ** len(whole) - 1) if len(whole) <= 3 else [2**kind for kind in kinds]
    return [tuple(whole[kind] * (choice >> kind & 1) for kind in kinds) for choice in chosen]


def numbers_of_hosts(cluster: Cluster) -> list[tuple[int, ...]]:
    """Returns how many hosts of each kind to plan for, as tuples with a number for each kind; never all hosts.

    Every choice is returned if there are few. Else one host after the other is taken away: in one row of choices from
    the kinds that cost most for what they compute, in another from the slowest kinds.

    >>> from alpa_dejavu.clusters import named_cluster
    >>> numbers_of_hosts(named_cluster("p3.16xlarge", 4))
    [(1,), (2,), (3,)]
    """
    members = members_of_kinds(cluster)
    whole = tuple(map(len, members))
    choices = 1
    for count in whole:
        choices *= count + 1
    if choices <= _ALL:
        return [counts for counts in itertools.product(*(range(n + 1) for n in whole)) if any(counts)][:-1]
    first = [cluster.hosts[hosts[0]] for hosts in members]
    rates = [host.num_devices * host.device.rate("float32") for host in first]
    dearest = sorted(range(len(first)), key=lambda kind: -(first[kind].price_per_hour or 0.0) / rates[kind])
    slowest = sorted(range(len(first)), key=lambda kind: rates[kind])
    return list(dict.fromkeys([*_left(whole, dearest), *_left(whole, slowest)]))


def _left(whole: Sequence[int], order: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields the numbers of hosts that are left as one host after the other is taken away, kind by kind."""
    left = list(whole)
    for kind in order:
        for _ in range(whole[kind]):
            left[kind] -= 1
            if any(left):
                yield tuple(left)
