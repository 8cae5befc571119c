"""Groups of devices along an axis of a logical mesh, on hosts that are not all alike."""

from __future__ import annotations

from collections.abc import Sequence

from alpa_dejavu._kinds import kinds_of
from alpa_dejavu.problem import Cluster, MeshConfig, Submesh

__all__ = ["unlike_groups"]


def unlike_groups(
    cluster: Cluster, hosts: Sequence[int], submesh: Submesh, config: MeshConfig, axis: int
) -> list[tuple[int, ...]]:
    """The host of each device, for one group of each kind: groups on hosts of the same kinds take equally long.

    Args:
        cluster: of the hosts.
        hosts: of the submesh, by their index in the cluster.
        submesh: with as many hosts.
        config: of the submesh; devices are numbered row by row, as in `MeshConfig.groups`.
        axis: 0, data parallel, or 1, tensor parallel.
    """
    across, along, per_host = config.data_parallel, config.tensor_parallel, submesh.devices_per_host
    kinds = kinds_of(cluster)
    if per_host % along == 0:
        # Each tensor-parallel group is in one host, and all data-parallel ones take the same hosts.
        first = {kinds[host]: host for host in reversed(hosts)}
        one_of_each = dict.fromkeys(first[kinds[host]] for host in hosts)
        whole = tuple(hosts[i * along // per_host] for i in range(across))
        return [whole] if axis == 0 else [(host,) * along for host in one_of_each]
    if axis == 0:
        groups = [[(i * along + n) // per_host for i in range(across)] for n in range(along)]
    else:
        groups = [[(n * along + i) // per_host for i in range(along)] for n in range(across)]
    found: dict[tuple[tuple[int, int], ...], tuple[int, ...]] = {}
    for places in dict.fromkeys(map(tuple, groups)):
        order = list(dict.fromkeys(places))
        key = tuple((order.index(place), kinds[hosts[place]]) for place in places)
        found.setdefault(key, tuple(hosts[place] for place in places))
    return list(found.values())
