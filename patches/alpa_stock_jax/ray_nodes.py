"""The nodes of the Ray cluster: which they are, and what of them is free.

Alpa tells hosts apart by their IP address, which several raylets on one machine share. Here a node's name is its
address and the beginning of its id; Alpa's own code carries it around in the place of the address and never connects
to it.
"""

from __future__ import annotations

import dataclasses
import time
from types import ModuleType
from typing import Any

import ray

from alpa_stock_jax._patch import Patch

__all__ = ["Node", "bundle_names", "free_nodes", "node_address", "nodes"]

_SETTLE_S = 3.0
_POLL_S = 0.1


@dataclasses.dataclass(frozen=True)
class Node:
    """A living node of the cluster.

    Attributes:
        node_id: Ray's id of it.
        address: the IP address; other nodes may have the same.
        devices: how many devices it declared to Ray.
        free_devices: how many of them nobody holds.
        info: what `ray.nodes()` says of it, its name in the place of the address.
    """

    node_id: str
    address: str
    devices: int
    free_devices: int
    info: dict[str, Any]

    @property
    def name(self) -> str:
        """What tells the node from all others."""
        return _name(self.address, self.node_id)


def _name(address: str, node_id: str) -> str:
    return f"{address}-{node_id[:8]}"


def node_address(name: str) -> str:
    """The IP address of the node with this name."""
    return name.rpartition("-")[0] or name


def nodes(accelerator: str = "GPU") -> list[Node]:
    """The living nodes that declared devices, the one of the driver first, then in the order of their names.

    Args:
        accelerator: the resource that stands for a device.
    """
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    here = ray.get_runtime_context().get_node_id()
    found = [_node(info, free.get(info["NodeID"], {}), accelerator) for info in ray.nodes() if info["Alive"]]
    return sorted((node for node in found if node.devices), key=lambda node: (node.node_id != here, node.name))


def _node(info: dict[str, Any], free: dict[str, float], accelerator: str) -> Node:
    node_id, address = info["NodeID"], info["NodeManagerAddress"]
    return Node(
        node_id=node_id,
        address=address,
        devices=int(info["Resources"].get(accelerator, 0)),
        free_devices=int(free.get(accelerator, 0)),
        info={**info, "NodeManagerAddress": _name(address, node_id)},
    )


def free_nodes(accelerator: str = "GPU", settle_s: float = _SETTLE_S) -> list[Node]:
    """The nodes, when what is free of them has settled.

    Ray gives devices back a moment after their holder has ended. While some are held, this waits until nothing has
    changed for `settle_s` seconds; when all are free it returns at once.
    """
    last: list[int] = []
    unchanged_since = time.monotonic()
    while True:
        found = nodes(accelerator)
        free = [node.free_devices for node in found]
        if free != last:
            last, unchanged_since = free, time.monotonic()
        if all(node.free_devices == node.devices for node in found):
            return found
        if time.monotonic() - unchanged_since > settle_s:
            return found
        time.sleep(_POLL_S)


def bundle_names(placement_group: Any = None) -> list[str]:
    """The names of the nodes that hold a placement group's bundles, in the order of the bundles."""
    from ray.util import get_current_placement_group, placement_group_table

    placement_group = placement_group or get_current_placement_group()
    if placement_group is None:
        raise RuntimeError("there is no placement group to look up; call alpa.init first")
    holders = placement_group_table(placement_group)["bundles_to_node_id"]
    addresses = {info["NodeID"]: info["NodeManagerAddress"] for info in ray.nodes()}
    return [_name(addresses[holders[index]], holders[index]) for index in sorted(holders)]


def _replace(module: ModuleType) -> None:
    def get_bundle2ip(pg: Any = None) -> list[str]:
        return bundle_names(pg)

    module.get_bundle2ip = get_bundle2ip  # type: ignore[attr-defined]


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.util",
        reason="two raylets on one machine share an IP address: hosts are told apart by their node, not by it",
        apply=_replace,
        expects={"get_bundle2ip": ("pg",), "get_bundle_idx": ("placement_group", "node_ips")},
        uses=("ray._private.state.available_resources_per_node", "ray.util.placement_group_table"),
    ),
)
