"""A mesh over several hosts with several devices each, on CPU: every device gets a worker of its own.

Gloo joins processes of one device each (see `_ray_backend`). So to the runtime such a mesh is one of more hosts with
one device, in the same order of devices; to the compiler it keeps its shape, by which logical meshes are chosen.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from alpa_stock_jax._patch import Patch

__all__ = ["one_device_hosts"]


def one_device_hosts(host_ids: Sequence[int], devices: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """The hosts of a mesh, each repeated for every device that it has, and that device.

    Examples:
        >>> one_device_hosts([3, 5], [[0, 1], [0, 1]])
        ([3, 3, 5, 5], [[0], [1], [0], [1]])
    """
    pairs = [(host, device) for host, own in zip(host_ids, devices, strict=True) for device in own]
    return [host for host, _ in pairs], [[device] for _, device in pairs]


def _replace(module: ModuleType) -> None:
    mesh_class: Any = module.DistributedPhysicalDeviceMesh
    original_init, original_logical = mesh_class.__init__, mesh_class.get_logical_mesh

    @functools.wraps(original_init)
    def init(
        self: Any,
        host_ids: Sequence[int],
        host_info: Sequence[dict[str, Any]],
        num_devices_per_host: int,
        parent: Any = None,
        devices: Sequence[Sequence[int]] | None = None,
        mesh_id: int | None = None,
        namespace: str | None = None,
    ) -> None:
        self.host_shape = (len(host_ids), num_devices_per_host)
        if module.global_config.backend == "cpu" and len(host_ids) > 1 and num_devices_per_host > 1:
            all_devices = devices or [list(range(num_devices_per_host)) for _ in host_ids]
            places = [info for info, own in zip(host_info, all_devices, strict=True) for _ in own]
            ids, devices = one_device_hosts(host_ids, all_devices)
            original_init(self, ids, places, 1, parent, devices, mesh_id, namespace)
        else:
            original_init(self, host_ids, host_info, num_devices_per_host, parent, devices, mesh_id, namespace)

    @functools.wraps(original_logical)
    def get_logical_mesh(self: Any, mesh_shape: Sequence[int] | None = None, *args: Any, **kwargs: Any) -> Any:
        return original_logical(self, mesh_shape or self.host_shape, *args, **kwargs)

    mesh_class.__init__ = init
    mesh_class.get_logical_mesh = get_logical_mesh
    mesh_class.shape = property(lambda self: self.host_shape)


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.device_mesh",
        reason="on CPU, a mesh of several hosts with several devices each has a worker for every device",
        apply=_replace,
        expects={
            "DistributedPhysicalDeviceMesh.__init__": (
                "self", "host_ids", "host_info", "num_devices_per_host", "parent", "devices", "mesh_id", "namespace",
            ),
            "DistributedPhysicalDeviceMesh.get_logical_mesh": None,
            "DistributedPhysicalDeviceMesh.shape": None,
        },
    ),
)  # fmt: skip
