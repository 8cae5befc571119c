"""The kinds of a cluster's hosts, found once: many steps of one planning ask for them."""

from __future__ import annotations

import weakref

from alpa_dejavu.problem import Cluster, ClusterSummary, host_kinds

__all__ = ["by_sites", "kinds_of", "members_of_kinds", "summary_of"]

_KNOWN: dict[int, tuple[weakref.ref[Cluster], tuple[int, ...]]] = {}
"""The kinds of hosts of clusters that are still there, by the cluster's id."""


def kinds_of(cluster: Cluster) -> tuple[int, ...]:
    """Returns the number of the kind of each host of a cluster (hosts of one kind are interchangeable), as `host_kinds`
    does, and caches them for the next call.
    """
    key = id(cluster)
    known = _KNOWN.get(key)
    if known is None or known[0]() is not cluster:
        known = weakref.ref(cluster, lambda _: _KNOWN.pop(key, None)), host_kinds(cluster)
        _KNOWN[key] = known
    return known[1]


def by_sites(cluster: Cluster) -> bool:
    """Returns whether stages are searched for by the hosts that they may be on: where hosts are of several kinds, or
    have a number of devices that isn't a power of two, so that submeshes don't fill them in any mixture.
    """
    return max(kinds_of(cluster)) > 0 or cluster.hosts[0].num_devices.bit_count() > 1


def members_of_kinds(cluster: Cluster) -> list[list[int]]:
    """Returns for each kind of host (hosts of one kind are interchangeable) the indices of its hosts in the cluster."""
    kinds = kinds_of(cluster)
    return [[host for host, of in enumerate(kinds) if of == kind] for kind in range(max(kinds) + 1)]


def summary_of(cluster: Cluster) -> ClusterSummary:
    """Returns the summary of a cluster's hosts and devices that is kept in a plan for it."""
    return ClusterSummary.of(cluster, kinds_of(cluster))
