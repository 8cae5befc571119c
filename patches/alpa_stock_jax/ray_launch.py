"""Starts the workers of a distributed mesh on CPU: an actor on each host, with that host's devices of the mesh."""

from __future__ import annotations

import functools
import os
import socket
from types import ModuleType
from typing import Any

import joblib
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from alpa_stock_jax import ray_nodes
from alpa_stock_jax._patch import Patch

_LOOPBACK = "127.0.0.1"


def _launch(mesh: Any) -> tuple[Any, list[Any]]:
    from alpa.global_env import global_config
    from alpa.util import retrieve_placement_group

    placement_group = retrieve_placement_group()
    bundles = {name: index for index, name in enumerate(ray_nodes.bundle_names(placement_group))}
    addresses = _addresses(mesh.node_ips)
    server, service = _start_service(mesh.num_hosts, addresses)
    workers = []
    for host in range(mesh.num_hosts):
        seat, device_bytes = _seat(mesh, host, service, addresses[host])
        place = PlacementGroupSchedulingStrategy(placement_group, bundles[mesh.node_ips[host]])
        actor = _worker_class(seat).options(scheduling_strategy=place, name=mesh.get_host_worker_name(host))
        workers.append(actor.remote(seat, mesh.mesh_id, global_config.runtime_random_seed, device_bytes))
    return server, workers


def _worker_class(seat: Any) -> Any:
    from alpa_stock_jax._ray_backend import worker_environment
    from alpa_stock_jax._ray_worker import CONCURRENCY_GROUPS, CpuMeshHostWorker

    return ray.remote(
        num_cpus=0,
        num_gpus=seat.devices,
        concurrency_groups=CONCURRENCY_GROUPS,
        runtime_env={"env_vars": worker_environment(seat, dict(os.environ))},
    )(CpuMeshHostWorker)


def _seat(mesh: Any, host: int, service: str, address: str) -> tuple[Any, int]:
    """A worker's place in the mesh, and the memory of each device: its part of what Ray gives to work."""
    from alpa_stock_jax._ray_backend import MeshSeat

    resources = mesh.host_info[host]["Resources"]
    node_devices = int(resources["GPU"])
    cores = joblib.cpu_count()
    seat = MeshSeat(
        process=host,
        processes=mesh.num_hosts,
        devices=mesh.num_devices_per_host,
        service=service,
        hostname=address if mesh.num_hosts > 1 else "",
        threads=max(mesh.num_devices_per_host, cores * mesh.num_devices_per_host // node_devices),
    )
    return seat, int(resources["memory"]) // node_devices


def _addresses(names: list[str]) -> list[str]:
    """Where the hosts reach each other: by loopback where all of them and the driver are one machine."""
    addresses = [ray_nodes.node_address(name) for name in names]
    if set(addresses) == {ray.util.get_node_ip_address()}:
        return [_LOOPBACK] * len(addresses)
    return addresses


def _start_service(num_hosts: int, addresses: list[str]) -> tuple[Any, str]:
    """XLA's distributed runtime service and its address; none for a mesh on one host."""
    from jax._src.lib import xla_client

    if num_hosts == 1:
        return None, ""
    address = _LOOPBACK if addresses[0] == _LOOPBACK else ray.util.get_node_ip_address()
    with socket.socket() as probe:
        probe.bind((address, 0))
        port = probe.getsockname()[1]
    service = f"{address}:{port}"
    return xla_client._xla.get_distributed_runtime_service(service, num_hosts), service


def _replace(module: ModuleType) -> None:
    original = module.DistributedPhysicalDeviceMesh.launch_xla_servers

    @functools.wraps(original)
    def launch_xla_servers(self: Any) -> tuple[Any, list[Any]]:
        if module.global_config.backend != "cpu":
            return original(self)
        return _launch(self)

    module.DistributedPhysicalDeviceMesh.launch_xla_servers = launch_xla_servers


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.device_mesh",
        reason="on CPU, a worker's process has as many CPU devices as the worker, and meets others through gloo",
        apply=_replace,
        expects={
            "DistributedPhysicalDeviceMesh.launch_xla_servers": ("self",),
            "DistributedPhysicalDeviceMesh.get_host_worker_name": ("self", "host_id"),
        },
        uses=("jaxlib.xla_client.make_cpu_client", "jaxlib.xla_extension.make_gloo_tcp_collectives"),
    ),
)
