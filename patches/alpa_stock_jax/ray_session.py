"""alpa.init and alpa.shutdown on a Ray cluster: errors before anything is started, and nothing left afterwards."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from types import ModuleType
from typing import Any

import jax
import ray

from alpa_stock_jax._patch import Patch
from alpa_stock_jax._ray_connection import session
from alpa_stock_jax._ray_version import check_version

_ANSWERS_S = 10.0
_SETTINGS = 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0))
"""How HTTP/2 begins, which gRPC and so Ray speak: whoever does answers by a frame of settings (RFC 9113, 3.4)."""


def _check_address() -> None:
    """Raises RuntimeError where no cluster answers at RAY_ADDRESS: Ray itself would try for minutes."""
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_S) as line:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                line.sendall(_PREFACE)
                if line.recv(4)[3:] != bytes((_SETTINGS,)):
                    raise OSError("what listens there isn't Ray")
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise RuntimeError(
            f"RAY_ADDRESS is {address!r}, but no cluster answers there ({why}); start one there, or unset RAY_ADDRESS"
        ) from None


def _connect(namespace: str | None) -> bool:
    """Connects to the running cluster; whether this made the connection."""
    check_version(ray.__version__)
    if ray.is_initialized():
        return False
    _check_address()
    try:
        ray.init(address="auto", namespace=namespace)
    except ConnectionError as error:
        raise RuntimeError(
            f"there is no Ray cluster to connect to ({error}): start one by `ray start --head --num-gpus=N` (N "
            'devices; on CPU, too, a device is a GPU to Ray), or call alpa.init("local")'
        ) from error
    return True


def _replace_in_meshes(module: ModuleType) -> None:
    original: Any = module.init_global_cluster
    platform: list[Any] = [None]

    @functools.wraps(original)
    def init_global_cluster(
        cluster: str,
        num_nodes: int | None = None,
        num_devices_per_node: int | None = None,
        namespace: str | None = None,
    ) -> None:
        if cluster not in ("local", "ray"):
            raise ValueError(f'cluster is {cluster!r}; it can be "local" or "ray"')
        platform[0] = jax.config._read("jax_platform_name")
        connected = cluster == "ray" and _connect(namespace)
        try:
            original(cluster, num_nodes, num_devices_per_node, namespace)
        except BaseException:
            _shut_down(module, platform[0])
            if connected:
                ray.shutdown()
            raise

    def shutdown_global_cluster() -> None:
        _shut_down(module, platform[0])

    module.init_global_cluster = init_global_cluster  # type: ignore[attr-defined]
    module.shutdown_global_cluster = shutdown_global_cluster  # type: ignore[attr-defined]


def _shut_down(module: Any, platform: Any) -> None:
    """Ends the global meshes and gives the cluster's devices back, whatever fails on the way."""
    mesh, virtual_mesh, cluster = (
        module.global_physical_mesh,
        module.global_virtual_physical_mesh,
        module.global_cluster,
    )
    module.global_physical_mesh = module.global_virtual_physical_mesh = module.global_cluster = None
    steps = contextlib.ExitStack()
    with steps:
        steps.callback(module.update_jax_platform, platform)
        if cluster is not None and ray.is_initialized():
            steps.callback(cluster.delete_placement_group)
        group = None if virtual_mesh is None else virtual_mesh.launched_physical_mesh_group
        if group is not None:
            for launched in group.meshes:
                steps.callback(launched.shutdown)
            if ray.is_initialized() and group.meshes[0].session == session():
                steps.callback(group.destroy_collective_groups)
        if mesh is not None:
            steps.callback(mesh.shutdown)


def _replace_in_api(module: Any) -> None:
    original_init, original_shutdown = module.init, module.shutdown

    @functools.wraps(original_init)
    def init(*args: Any, **kwargs: Any) -> None:
        was_initialized = module.is_initialized
        try:
            original_init(*args, **kwargs)
        except BaseException:
            module.is_initialized = was_initialized
            raise

    @functools.wraps(original_shutdown)
    def shutdown() -> None:
        if module.is_initialized:
            original_shutdown()

    module.init, module.shutdown = init, shutdown


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.device_mesh",
        reason="a missing or unfit Ray is told before anything starts, and shutting down works in every state",
        apply=_replace_in_meshes,
        expects={
            "init_global_cluster": ("cluster", "num_nodes", "num_devices_per_node", "namespace"),
            "shutdown_global_cluster": (),
            "update_jax_platform": ("platform",),
        },
    ),
    Patch(
        module="alpa.api",
        reason="a failed init can be tried again, and shutdown may be called twice",
        apply=_replace_in_api,
        expects={"init": ("cluster", "num_nodes", "num_devices_per_node", "namespace"), "shutdown": ()},
    ),
)
