"""Where submeshes may be on hosts of unlike kinds: within one kind, and on mixtures that make sense."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from alpa_dejavu.clusters.host_classes import members_of_kinds
from alpa_dejavu.problem import Cluster, Submesh

__all__ = ["Site", "sites"]

Site = tuple[Submesh, tuple[int, ...]]
"""A submesh, and the hosts that stand for all of their kinds."""
_FEW, _MIXTURES = 3, 128
"""Up to so many kinds of hosts, and more kinds if there are no more mixtures than this, are mixed freely."""


def sites(
    cluster: Cluster, parts: Callable[[int], Sequence[int]], several: Callable[[int], Sequence[int]]
) -> tuple[Site, ...]:
    """Returns the submeshes that stages may have on unlike hosts, each with the indices of hosts that stand for all
    hosts of their kinds.

    Parts of a host and whole hosts of each kind come first, then mixtures of kinds.

    A mixture takes equally many devices of each host: all of the smallest one's. If there are few kinds, every mixture
    of numbers of hosts from `several` is offered; if there are many, only mixtures of all hosts of some kinds: those
    that result from joining kinds by their links, the fastest first, and those of the kinds with the fastest devices.
    All hosts together are always offered.

    Args:
        cluster: the cluster with the hosts.
        parts: a function from a host's number of devices to the numbers of them that a stage may take.
        several: a function from a number of hosts to the numbers of them that a stage of whole hosts may take; 1 and
            all are added.
    """
    members, found = members_of_kinds(cluster), list[Site]()
    for hosts in members:
        whole = cluster.hosts[hosts[0]].num_devices
        found += ((Submesh(1, part), (hosts[0],)) for part in parts(whole))
        found += ((Submesh(n, whole), tuple(hosts[:n])) for n in several(len(hosts)) if n > 1)
    for counts in (*_mixtures(cluster, members, several), tuple(map(len, members))):
        taken = tuple(host for hosts, count in zip(members, counts, strict=True) for host in hosts[:count])
        found.append((Submesh(len(taken), min(cluster.hosts[host].num_devices for host in taken)), taken))
    return tuple(dict.fromkeys(found))


def _mixtures(
    cluster: Cluster, members: Sequence[Sequence[int]], several: Callable[[int], Sequence[int]]
) -> Iterator[tuple[int, ...]]:
    """How many hosts of each kind."""
    most = max((*several(len(cluster.hosts)), 1))
    numbers = [sorted({0, 1, *several(len(hosts)), *([len(hosts)] if len(hosts) <= most else [])}) for hosts in members]
    if len(members) > _FEW and math.prod(map(len, numbers)) > _MIXTURES:
        for union in _unions(cluster, [hosts[0] for hosts in members]):
            yield tuple(len(hosts) if kind in union else 0 for kind, hosts in enumerate(members))
        return
    for counts in itertools.product(*numbers):
        if sum(count > 0 for count in counts) > 1 and sum(counts) <= most:
            yield counts


def _unions(cluster: Cluster, first: Sequence[int]) -> Iterator[frozenset[int]]:
    """Sets of kinds, given a host of each; all of them is the last."""

    def rate(pair: tuple[int, int]) -> float:
        there, back = cluster.links[first[pair[0]]][first[pair[1]]], cluster.links[first[pair[1]]][first[pair[0]]]
        return min(there.bytes_per_s, back.bytes_per_s)

    fastest = sorted(range(len(first)), key=lambda kind: -cluster.hosts[first[kind]].device.rate("float32"))
    for count in range(2, len(fastest)):
        yield frozenset(fastest[:count])
    joined = {kind: frozenset([kind]) for kind in range(len(first))}
    for a, b in sorted(itertools.combinations(range(len(first)), 2), key=rate, reverse=True):
        if joined[a] != joined[b]:
            union = joined[a] | joined[b]
            joined |= dict.fromkeys(union, union)
            yield union
