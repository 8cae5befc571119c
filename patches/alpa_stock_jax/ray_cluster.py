"""The part of the Ray cluster that Alpa takes: the free devices of all nodes, each node a host.

A mesh of Alpa's has equally many devices on each host. So the mesh that Alpa plans on is the largest such part of what
is free; `every_host` of it says all hosts with all their devices, for plans that name them.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import ray

from alpa_stock_jax import ray_nodes
from alpa_stock_jax._patch import Patch

__all__ = ["Share", "choose_share", "taken_devices"]

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 100.0
_RETURN_TIMEOUT_S = 5.0


@dataclasses.dataclass(frozen=True)
class Share:
    """What Alpa takes: `hosts` nodes, and on each `devices_per_host` devices."""

    hosts: int
    devices_per_host: int


def choose_share(free: Sequence[int], num_nodes: int | None = None, num_devices_per_node: int | None = None) -> Share:
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


def taken_devices(
    free: Sequence[int], num_nodes: int | None = None, num_devices_per_node: int | None = None
) -> list[int]:
    """How many devices are taken on each node that some are taken on: all, or as many as are asked for.

    Raises:
        RuntimeError: as `choose_share` does.

    Examples:
        >>> taken_devices([4, 0, 2])
        [4, 2]
        >>> taken_devices([4, 2, 2], num_nodes=2)
        [2, 2]
    """
    share = choose_share(free, num_nodes, num_devices_per_node)
    if num_nodes or num_devices_per_node:
        return [share.devices_per_host] * share.hosts
    return [devices for devices in free if devices > 0]


def _create_placement_group(devices: Sequence[int], name: str | None) -> Any:
    # No CPU is asked for: Alpa's actors need none, so a cluster with few logical CPUs cannot make them wait for ever.
    group = ray.util.placement_group([{"GPU": count} for count in devices], strategy="STRICT_SPREAD", name=name or "")
    ready, _ = ray.wait([group.ready()], timeout=_START_TIMEOUT_S)
    if not ready:
        ray.util.remove_placement_group(group)
        raise RuntimeError(
            f"Ray didn't give {list(devices)} devices on as many nodes within {_START_TIMEOUT_S:.0f} s, though they "
            f"were free: available are {ray.available_resources()}; end what else takes them and try again"
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
        devices = taken_devices([node.free_devices for node in found], num_nodes, num_devices_per_node)
        left_out = sum(node.devices for node in found) - sum(devices)
        if left_out and not num_devices_per_node:
            logger.info("%d devices of the Ray cluster are held by others", left_out)
        group = _create_placement_group(devices, name)
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


def _on_equal_hosts(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the cluster that makes a mesh: unless it is told, of the largest part that is one.

    Alpa would take the first host's number of devices, and refuse a host that has fewer.
    """

    @functools.wraps(original)
    def method(self: Any, host_ids: Sequence[int] | None = None, num_devices_per_host: int | None = None) -> Any:
        counts = self.host_num_devices
        if host_ids is not None or num_devices_per_host is not None or len(set(counts)) == 1:
            return original(self, host_ids, num_devices_per_host)
        share = choose_share(counts)
        fitting = [host for host, devices in enumerate(counts) if devices >= share.devices_per_host]
        mesh = original(self, fitting[: share.hosts], share.devices_per_host)
        mesh.every_host = tuple(zip(self.host_info, counts, strict=True))
        return mesh

    return method


def _replace(module: ModuleType) -> None:
    for name in ("get_physical_mesh", "get_virtual_physical_mesh"):
        setattr(module.DeviceCluster, name, _on_equal_hosts(getattr(module.DeviceCluster, name)))

    def init(
        self: Any, num_nodes: int | None = None, num_devices_per_node: int | None = None, namespace: str | None = None
    ) -> None:
        _init(self, num_nodes, num_devices_per_node, namespace)

    module.DeviceCluster.__init__ = init
    module.DeviceCluster.delete_placement_group = _give_back


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.device_mesh",
        reason="a cluster is the nodes with free devices, also unlike numbers of them, and needs no logical CPU",
        apply=_replace,
        expects={
            "DeviceCluster.__init__": ("self", "num_nodes", "num_devices_per_node", "namespace"),
            "DeviceCluster.delete_placement_group": ("self",),
            "DeviceCluster.get_physical_mesh": ("self", "host_ids", "num_devices_per_host"),
            "DeviceCluster.get_virtual_physical_mesh": ("self", "host_ids", "num_devices_per_host"),
        },
    ),
)
