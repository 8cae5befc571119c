"""Which hosts each stage is on: Alpa's own rule, since Alpa places the stages of a finished plan by it."""

from __future__ import annotations

from collections.abc import Sequence

from alpa_dejavu.problem import Cluster, NoPlanError, Submesh

__all__ = ["place"]


def place(submeshes: Sequence[Submesh], cluster: Cluster) -> list[tuple[int, ...]]:
    """For each stage's submesh the indices of its hosts: the largest come first and take hosts in order.

    Raises:
        NoPlanError: the submeshes don't fill the hosts.

    References:
        Alpa's `get_sliced_virtual_submeshes`.
    """
    free = [host.num_devices for host in cluster.hosts]
    placed: list[tuple[int, ...]] = [()] * len(submeshes)
    for n in sorted(range(len(submeshes)), key=lambda n: submeshes[n].num_devices, reverse=True):
        wanted = submeshes[n]
        fitting = [host for host, left in enumerate(free) if left >= wanted.devices_per_host]
        if len(fitting) < wanted.num_hosts:
            shapes = [(s.num_hosts, s.devices_per_host) for s in submeshes]
            raise NoPlanError(
                f"the submeshes {shapes} don't fit the hosts of cluster {cluster.name} "
                f"({[host.num_devices for host in cluster.hosts]} devices); choose submeshes that fill its hosts"
            )
        placed[n] = tuple(fitting[: wanted.num_hosts])
        for host in placed[n]:
            free[host] -= wanted.devices_per_host
    return placed
