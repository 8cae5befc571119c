"""Hosts that are joined by faster links than their own devices are: stages then go across hosts, and not into them."""

from __future__ import annotations

from collections.abc import Sequence

from alpa_dejavu.problem import Cluster, Submesh

__all__ = ["across_hosts", "slow_inside", "takes_part_of_several"]

_CLEARLY = 1.25
"""So many times faster is more than what measurements are off by."""


def slow_inside(cluster: Cluster) -> bool:
    """Returns whether every link within a host of several devices is clearly slower than every link between hosts.

    This is so where devices reach each other through the host's memory alone, and other hosts through a card beside
    them.

    >>> from alpa_dejavu.testing import example_cluster
    >>> slow_inside(example_cluster())
    False
    """
    inside = [cluster.links[n][n] for n, host in enumerate(cluster.hosts) if host.num_devices > 1]
    between = [link for a, row in enumerate(cluster.links) for b, link in enumerate(row) if a != b]
    if not inside or not between or cluster.shared:
        return False
    collective = max(link.bytes_per_s for link in inside), min(link.bytes_per_s for link in between)
    sends = max(link.sending[1] for link in inside), min(link.sending[1] for link in between)
    return all(_CLEARLY * slow < fast for slow, fast in (collective, sends))


def across_hosts(cluster: Cluster, parts: Sequence[int], several: Sequence[int]) -> list[Submesh]:
    """Returns submeshes that take a part of each of several hosts that are alike: one device of each of some or all
    hosts, or more devices, but not all, of each of all hosts.

    Args:
        cluster: the cluster, whose hosts have equally many devices.
        parts: the numbers of a host's devices that a stage may take.
        several: the numbers of hosts that a stage may take, besides all.
    """
    hosts, devices = len(cluster.hosts), cluster.hosts[0].num_devices
    found = [Submesh(n, 1) for n in dict.fromkeys([*several, hosts])]
    return [*found, *(Submesh(hosts, part) for part in parts if 1 < part < devices)]


def takes_part_of_several(submesh: Submesh, cluster: Cluster) -> bool:
    """Returns whether a submesh takes some, but not all devices of each of several hosts."""
    return submesh.num_hosts > 1 and submesh.devices_per_host < min(host.num_devices for host in cluster.hosts)
