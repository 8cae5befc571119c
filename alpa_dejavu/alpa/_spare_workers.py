"""Ray actors on devices that Alpa holds and a plan leaves unused."""

from __future__ import annotations

import collections
from typing import Any

from alpa_dejavu.alpa._places import cluster_differences, places
from alpa_dejavu.alpa.ray_cluster import alpa_hosts
from alpa_dejavu.problem import Cluster, Plan


def spare_workers(plan: Plan, cluster: Cluster | None = None) -> list[dict[str, Any]]:
    """See `alpa_dejavu.alpa.into_alpa.spare_workers`."""
    from alpa.device_mesh import get_global_cluster, get_global_virtual_physical_mesh

    mesh, devices = get_global_virtual_physical_mesh(), get_global_cluster()
    if mesh is None or devices is None:
        raise RuntimeError('Alpa isn\'t connected to Ray; call alpa.init("ray") first')
    differences = list(cluster_differences(plan, mesh, cluster))
    if differences:
        raise ValueError(f"the plan isn't for this cluster: {'; '.join(differences)}; plan again for it")
    taken: collections.Counter[int] = collections.Counter()
    for stage, numbers in zip(plan.stages, places(plan, mesh, cluster), strict=True):
        taken.update(dict.fromkeys(numbers, stage.submesh.devices_per_host))
    return actor_options(
        [(host.info["NodeID"], host.num_devices - taken[n]) for n, host in enumerate(alpa_hosts(mesh))],
        devices.placement_group,
    )


def actor_options(spare: list[tuple[str, int]], group: Any) -> list[dict[str, Any]]:
    """Returns for each spare device of Ray's nodes the options of an actor there, in its node's part of the group.

    Alpa has reserved all devices of its hosts by the group, so that nobody gets one outside of it.
    """
    from ray.util import placement_group_table
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundles = {node: bundle for bundle, node in placement_group_table(group)["bundles_to_node_id"].items()}
    return [
        {
            "num_cpus": 0,
            "num_gpus": 1,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundles[node]),
        }
        for node, count in spare
        for _ in range(count)
    ]
