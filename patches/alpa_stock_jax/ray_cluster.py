"""The part of the Ray cluster that Alpa takes: as many equal hosts as are free, each on a node of its own."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import ray

from alpa_stock_jax import ray_nodes
from alpa_stock_jax._patch import Patch

__all__ = ["Share", "choose_share"]

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 100.0
_RETURN_TIMEOUT_S = 5.0


@dataclasses.dataclass(frozen=True)
class Share:
    """What Alpa takes: `hosts` nodes, and on each `devices_per_host` devices."""

    hosts: int
    devices_per_host: int


def choose_share(
    free: Sequence[int], num_nodes: int | None = None, num_devices_per_node: int | None = None
) -> Share:
    """The most devices that form a mesh, every host having equally many.

    Args:
        free: how many devices are free on each node.
        num_nodes: how many nodes are asked for; None for as many as there are.
        num_devices_per_node: how many devices are asked for on each; None for as many as there are.

    Raises:
        RuntimeError: fewer are free than asked for, or none are.

    Examples:
        >>> choose_share([4, 4])
        Share(hosts=2, devices_per_host=4)
        >>> choose_share([4, 1, 2], num_nodes=2)
        Share(hosts=2, devices_per_host=2)
    """
    sizes = {num_devices_per_node} if num_devices_per_node else {devices for devices in free if devices > 0}
    fitting = {size: sum(devices >= size for devices in free) for size in sizes}
    if num_nodes:
        shares = [Share(num_nodes, size) for size, hosts in fitting.items() if hosts >= num_nodes]
    else:
        shares = [Share(hosts, size) for size, hosts in fitting.items() if hosts]
    if not shares:
        raise RuntimeError(
            f"alpa.init asks for {num_nodes or 'any number of'} nodes with {num_devices_per_node or 'any number of'} "
            f"devices each, but the nodes of the Ray cluster have {list(free)} free devices: ask for fewer, end what "
            "holds the others, or start Ray with more (`ray start --num-gpus=N`; on CPU, too, a device is a GPU to Ray)"
        )
    return max(shares, key=lambda share: (share.hosts * share.devices_per_host, share.devices_per_host))


def _create_placement_group(share: Share, name: str | None) -> Any:
    # No CPU is asked for: Alpa's actors need none, so a cluster with few logical CPUs cannot make them wait for ever.
    group = ray.util.placement_group(
        [{"GPU": share.devices_per_host} for _ in range(share.hosts)], strategy="STRICT_SPREAD", name=name or ""
    )
    ready, _ = ray.wait([group.ready()], timeout=_START_TIMEOUT_S)
    if not ready:
        ray.util.remove_placement_group(group)
        raise RuntimeError(
            f"Ray didn't give {share.hosts} x {share.devices_per_host} devices within {_START_TIMEOUT_S:.0f} s, though "
            f"they were free: available are {ray.available_resources()}; end what else takes them and try again"
        )
    return group


def _existing_placement_group(name: str | None) -> Any:
    """The group of the actor that this runs in, or the one that another driver made under this name."""
    current = ray.util.get_current_placement_group()
    if current is not None:
        return current
    if name is None:
        return None
    try:
        return ray.util.get_placement_group(name)
    except ValueError:
        return None


def _init(cluster: Any, num_nodes: int | None, num_devices_per_node: int | None, namespace: str | None) -> None:
    name = f"{namespace}_pg" if namespace else None
    found = ray_nodes.free_nodes()
    group = _existing_placement_group(name)
    if group is None:
        share = choose_share([node.free_devices for node in found], num_nodes, num_devices_per_node)
        left_out = sum(node.devices for node in found) - share.hosts * share.devices_per_host
        if left_out and not num_devices_per_node:
            logger.info("%d devices of the Ray cluster are held by others or don't fit into the mesh", left_out)
        group = _create_placement_group(share, name)
    held = {
        node_name: int(bundle["GPU"])
        for node_name, bundle in zip(ray_nodes.bundle_names(group), group.bundle_specs, strict=True)
        if bundle.get("GPU", 0) > 0
    }
    hosts = [node for node in found if node.name in held]
    cluster.head_info = {"address": ray.get_runtime_context().gcs_address}
    cluster.namespace = namespace
    cluster.placement_group = group
    cluster.host_num_devices = [held[node.name] for node in hosts]
    cluster.host_info = [node.info for node in hosts]
    cluster.host_ips = [node.name for node in hosts]


def _give_back(cluster: Any) -> None:
    """Removes the placement group, and waits until Ray counts its devices as free for the next `init`."""
    if cluster.placement_group is None:
        return
    ray.util.remove_placement_group(cluster.placement_group)
    cluster.placement_group = None
    held = dict(zip(cluster.host_ips, cluster.host_num_devices, strict=True))
    deadline = time.monotonic() + _RETURN_TIMEOUT_S
    while time.monotonic() < deadline:
        if all(node.free_devices >= held.get(node.name, 0) for node in ray_nodes.nodes()):
            return
        time.sleep(0.05)


def _replace(module: ModuleType) -> None:
    def init(
        self: Any, num_nodes: int | None = None, num_devices_per_node: int | None = None, namespace: str | None = None
    ) -> None:
        _init(self, num_nodes, num_devices_per_node, namespace)

    module.DeviceCluster.__init__ = init
    module.DeviceCluster.delete_placement_group = _give_back


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.device_mesh",
        reason="a cluster is the nodes that have free devices, whatever their addresses, and needs no logical CPU",
        apply=_replace,
        expects={
            "DeviceCluster.__init__": ("self", "num_nodes", "num_devices_per_node", "namespace"),
            "DeviceCluster.delete_placement_group": ("self",),
        },
    ),
)
