"""What a stage may be: submeshes of a cluster, and logical views of them with remat and a ZeRO level."""

from __future__ import annotations

import math
from collections.abc import Sequence

from alpa_dejavu.problem import Cluster, MeshConfig, SearchSpace, Submesh

__all__ = ["search_space", "submeshes"]

_FORCED = {"force_batch_dim_to_mesh_dim": 0}
_OPTIONS = {0: {}, 2: {"prefer_reduce_scatter": True}, 3: {"force_zero_stage_3": True}}
"""Of Alpa's auto-sharding pass, by ZeRO level."""


def submeshes(cluster: Cluster, kind: str = "power_of_two") -> tuple[Submesh, ...]:
    """Parts of a host, then whole hosts.

    Args:
        cluster: hosts with equally many devices.
        kind: "power_of_two" (1, 2, 4 ... devices, then 1, 2, 4 ... hosts), "small_power_of_two" (at most 4 hosts) or
            "all" (every number of hosts). All of the cluster is always among them.

    Raises:
        ValueError: an unknown kind, or hosts with unlike numbers of devices.

    References:
        Zheng et al., Alpa, OSDI 2022, section 5.2: why these fill every cluster.

    >>> from alpa_dejavu.clusters import named_cluster
    >>> [(s.num_hosts, s.devices_per_host) for s in submeshes(named_cluster("p3.16xlarge", 2))]
    [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8)]
    """
    devices = {host.num_devices for host in cluster.hosts}
    if len(devices) != 1:
        raise ValueError(f"cluster {cluster.name}: its hosts have {sorted(devices)} devices; give them equally many")
    most, hosts = devices.pop(), len(cluster.hosts)
    several = {
        "power_of_two": [n for n in range(2, hosts + 1) if n.bit_count() == 1],
        "small_power_of_two": [n for n in (2, 4) if n <= hosts],
        "all": list(range(2, hosts + 1)),
    }
    if kind not in several:
        raise ValueError(f"submeshes is {kind!r}; choose one of {', '.join(map(repr, several))}")
    within = [n for n in range(1, most + 1) if n.bit_count() == 1 or n == most]
    whole = [*several[kind], hosts] if hosts > 1 else []
    shapes = dict.fromkeys([*((1, n) for n in within), *((n, most) for n in whole)])
    return tuple(Submesh(*shape) for shape in shapes)


def search_space(
    cluster: Cluster,
    micro_batch: int,
    kind: str = "power_of_two",
    remat: Sequence[str] = ("none",),
    zero: Sequence[int] = (0,),
    imbalance: float = math.inf,
) -> SearchSpace:
    """Every split of every submesh into data and tensor parallelism, with every remat and ZeRO level.

    Tensor-parallel devices are in one host, and there are no more data-parallel ones than a micro-batch divides among.
    Where it divides among all devices they are offered in a row, too, for the auto-sharding pass to cut what it likes:
    experts of a mixture among them. ZeRO levels above 0 are offered where there are data-parallel devices to share.

    Args:
        cluster: hosts with equally many devices.
        micro_batch: samples.
        kind: of submeshes, as `submeshes` takes it.
        remat: of "none" and "layer".
        zero: of 0, 2 and 3.
        imbalance: as `SearchSpace.allowed_imbalance`.

    Raises:
        ValueError: as `submeshes` does.
    """
    choices = submeshes(cluster, kind)
    rows = []
    for submesh in choices:
        size = submesh.num_devices
        splits = [
            (size // along, along)
            for along in range(1, submesh.devices_per_host + 1)
            if size % along == 0 and micro_batch % (size // along) == 0
        ]
        meshes = [(split, _FORCED) for split in splits]
        if (size, 1) in splits and size > 1:
            meshes.append(((size, 1), {}))
        rows.append(
            [
                MeshConfig(mesh, *mesh, options={**batch, **_OPTIONS[level]}, remat=again, zero=level)
                for mesh, batch in meshes
                for again in remat
                for level in zero
                if level == 0 or mesh[0] > 1
            ]
        )
    width = max(1, *map(len, rows))
    configs = tuple((*row, *[None] * (width - len(row))) for row in rows)
    return SearchSpace(choices, configs, imbalance)
