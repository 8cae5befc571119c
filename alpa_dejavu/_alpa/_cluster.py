"""The cluster that Alpa is connected to, as ours."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from alpa_dejavu.clusters import local_links, machine_for, named_cluster
from alpa_dejavu.latency import measured_cpu
from alpa_dejavu.problem import Cluster, Host

_ACCELERATOR = "accelerator_type:"


def cluster_of(virtual_mesh: Any, choice: str | Cluster | None) -> Cluster:
    """The hosts of Alpa's virtual mesh with their devices' figures.

    On a CPU backend this machine is measured, once in a process. On GPUs the data sheet is found by the accelerator
    type that Ray names.

    Raises:
        ValueError: the given cluster hasn't Alpa's hosts or devices, or nothing is known of the accelerator.
    """
    num_hosts, devices = int(virtual_mesh.num_hosts), int(virtual_mesh.num_devices_per_host)
    if isinstance(choice, Cluster):
        shape = [host.num_devices for host in choice.hosts]
        if shape != [devices] * num_hosts:
            raise ValueError(
                f"the given cluster {choice.name} has hosts of {shape} devices, but Alpa is connected to {num_hosts} "
                f"hosts of {devices}; give a cluster that fits, or None"
            )
        return choice
    if choice is not None:
        return named_cluster(choice, num_hosts, devices)
    from alpa.global_env import global_config

    if global_config.backend == "cpu":
        return _cpu_cluster(virtual_mesh.host_info, devices)
    return named_cluster(_machine(virtual_mesh.host_info), num_hosts, devices)


def connected_cluster() -> Cluster:
    """The Ray cluster that this program can connect to; it stays connected.

    Raises:
        RuntimeError: there is none.
    """
    import alpa
    from alpa.device_mesh import get_global_virtual_physical_mesh

    try:
        alpa.init("ray")
    except ConnectionError as error:
        raise RuntimeError(
            f"there is no Ray cluster to connect to ({error}); start one with `ray start --head`, or name a machine"
        ) from None
    return cluster_of(get_global_virtual_physical_mesh(), None)


def _machine(host_info: Sequence[Mapping[str, Any]]) -> str:
    named = {
        resource.removeprefix(_ACCELERATOR)
        for host in host_info
        for resource in host.get("Resources", {})
        if resource.startswith(_ACCELERATOR)
    }
    machines = {machine for machine in map(machine_for, named) if machine}
    if len(machines) != 1:
        raise ValueError(
            f"Ray names the accelerators {sorted(named)}, for which no data sheet is known (or more than one); "
            "give DejavuStageOption(cluster=...) a machine's name or file"
        )
    return machines.pop()


def _cpu_cluster(host_info: Sequence[Mapping[str, Any]], devices: int) -> Cluster:
    """Ray nodes of one machine share its cores: its rates are divided among the devices of all of them."""
    machines = [str(host.get("NodeManagerHostname") or host.get("NodeManagerAddress")) for host in host_info]
    hosts = []
    for n, machine in enumerate(machines):
        sharing = machines.count(machine)
        name = f"{machine}:{n}" if sharing > 1 else machine
        hosts.append(Host(name, measured_cpu(devices * sharing), devices))
    within, between = local_links()
    links = tuple(tuple(within if a == b else between for b in range(len(hosts))) for a in range(len(hosts)))
    cores = os.cpu_count() if len(set(machines)) == 1 else None
    return Cluster(f"CPU cluster of {len(hosts)} x {devices}", tuple(hosts), links, cores=cores)
