"""The kinds of a cluster's hosts, found once since many steps of a planning ask for them, and whether their own links
are slow.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import TypeVar

from alpa_dejavu._util.threads import usable_cores
from alpa_dejavu.clusters import known_machines
from alpa_dejavu.problem import Cluster, ClusterSummary, HostSummary, Plan, Submesh, host_kinds

Figure = TypeVar("Figure")


def _once(figure: Callable[[Cluster], Figure]) -> Callable[[Cluster], Figure]:
    """A function that works out a figure of each cluster once, as long as the cluster is there; it goes by its id."""
    of_clusters: dict[int, tuple[weakref.ref[Cluster], Figure]] = {}

    @functools.wraps(figure)
    def of(cluster: Cluster) -> Figure:
        key = id(cluster)
        kept = of_clusters.get(key)
        if kept is None or kept[0]() is not cluster:
            kept = of_clusters[key] = weakref.ref(cluster, lambda _: of_clusters.pop(key, None)), figure(cluster)
        return kept[1]

    return of


@_once
def kinds_of(cluster: Cluster) -> tuple[int, ...]:
    """Returns the number of each host's kind (hosts of one kind are interchangeable), cached for the next call."""
    return host_kinds(cluster)


def by_sites(cluster: Cluster) -> bool:
    """Returns whether stages are searched for by the hosts that they may be on: where hosts are of several kinds, or
    have a number of devices that isn't a power of two, so that submeshes don't fill them in any mixture.
    """
    return max(kinds_of(cluster)) > 0 or cluster.hosts[0].num_devices.bit_count() > 1


def members_of_kinds(cluster: Cluster) -> list[list[int]]:
    """Returns for each kind of host (hosts of one kind are interchangeable) the indices of its hosts in the cluster."""
    members: list[list[int]] = [[] for _ in range(max(kinds_of(cluster)) + 1)]
    for host, kind in enumerate(kinds_of(cluster)):
        members[kind].append(host)
    return members


def summary_of(cluster: Cluster) -> ClusterSummary:
    """Returns the summary of a cluster's hosts and devices that is kept in a plan for it."""
    return ClusterSummary.of(cluster, kinds_of(cluster))


_CLEARLY = 1.25
"""So many times faster is more than what measurements are off by."""


@_once
def slow_inside(cluster: Cluster) -> bool:
    """Returns whether every link within a host of several devices is clearly slower than every link between hosts.

    This is so where devices reach each other through the host's memory alone, and other hosts through a card beside
    them. Of a link between hosts counts what one device has of it, by its own card where that is known.

    >>> from alpa_dejavu.testing import example_cluster
    >>> slow_inside(example_cluster())
    False
    """
    kinds = cluster.link_kinds
    several = {n for n, host in zip(kinds.within, cluster.hosts, strict=True) if host.num_devices > 1}
    inside, between = [kinds.links[n] for n in several], kinds.between(range(len(cluster.hosts)))
    if not inside or not between or cluster.shared:
        return False
    collective = max(link.bytes_per_s for link in inside), min(link.devices_bytes_per_s(1) for link in between)
    sends = max(link.sending[1] for link in inside), min(link.sending_from(1)[1] for link in between)
    return all(_CLEARLY * slow < fast for slow, fast in (collective, sends))


def across_hosts(cluster: Cluster, parts: Sequence[int], several: Sequence[int]) -> list[Submesh]:
    """Returns submeshes that take a part of each of several hosts that are alike: one device of each of some or all
    hosts, or more devices, but not all, of each of all hosts. `parts` and `several` are the numbers of a host's devices
    and of hosts that a stage may take.
    """
    hosts, devices = len(cluster.hosts), cluster.hosts[0].num_devices
    single = [Submesh(n, 1) for n in dict.fromkeys([*several, hosts])]
    return [*single, *(Submesh(hosts, part) for part in parts if 1 < part < devices)]


def takes_part_of_several(submesh: Submesh, cluster: Cluster) -> bool:
    """Returns whether a submesh takes some, but not all devices of each of several hosts."""
    return submesh.num_hosts > 1 and submesh.devices_per_host < min(host.num_devices for host in cluster.hosts)


def hosts_by_names(plan: Plan, num_hosts: int | None = None) -> ClusterSummary:
    """Returns the summary of an old plan's cluster, of which the plan held none, as far as its stages tell: the hosts
    that they name, or, by their names, those of a known machine type in a cluster of `num_hosts` (None: as many as the
    stages name).

    Those are interchangeable; else each named host is of a kind of its own. Each host gets the most devices that stages
    use on one host, and a host without a stage gets 0 bytes of memory: neither is known.
    """
    devices = plan.devices_of_hosts
    most = max(devices.values())
    names, machine = list(devices), ""
    for known_machine in known_machines():
        every = [f"{known_machine}-{n}" for n in range(num_hosts or len(devices))]
        if devices.keys() <= set(every):
            names, machine = every, known_machine
    memory = {name: stage.memory_limit_bytes for stage in plan.stages for name in stage.hosts}
    hosts = tuple(
        HostSummary(name, most, "", memory.get(name, 0.0), kind=0 if machine else n) for n, name in enumerate(names)
    )
    return ClusterSummary(hosts, machine, cores=usable_cores() if machine == "local-cpu" else None)
