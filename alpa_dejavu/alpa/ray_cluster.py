"""The cluster that Alpa is connected to, as ours."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from alpa_dejavu.clusters import local_links, machine_for, named_cluster
from alpa_dejavu.clusters.cpu_link import cpu_links
from alpa_dejavu.clusters.cpu_probe import measured_cpu, on_one_cpu
from alpa_dejavu.problem import Cluster, Host

_ACCELERATOR = "accelerator_type:"


@final
@dataclasses.dataclass(frozen=True)
class AlpaHost:
    """A host that Alpa may use: its number in Alpa's cluster, what Ray says of it, and its devices."""

    host_id: int
    info: Mapping[str, Any]
    num_devices: int


def alpa_hosts(virtual_mesh: Any) -> list[AlpaHost]:
    """Returns all hosts of Alpa's virtual mesh in order; of the whole cluster's with all devices, also unequal ones."""
    mesh = virtual_mesh
    if getattr(mesh, "every_host", None) is not None:
        return [AlpaHost(n, info, count) for n, (info, count) in enumerate(mesh.every_host)]
    every = zip(mesh.host_ids, mesh.host_info, strict=True)
    return [AlpaHost(int(n), info, int(mesh.num_devices_per_host)) for n, info in every]


def equal_hosts(virtual_mesh: Any) -> list[int]:
    """Returns the indices of the hosts that Alpa's virtual mesh, with equally many devices of each, has of all."""
    whole = getattr(virtual_mesh, "every_host", None) is not None
    return [int(n) for n in virtual_mesh.host_ids] if whole else list(range(len(virtual_mesh.host_ids)))


def host_names(virtual_mesh: Any) -> list[str]:
    """Returns the names of the virtual mesh's hosts: machines', with a number where Ray nodes share a machine."""
    return _names([host.info for host in alpa_hosts(virtual_mesh)])


def nodes_with_devices() -> dict[str, str]:
    """Returns Ray's ids of its living nodes that have devices, by the names that they have as hosts of Alpa's."""
    import ray
    from alpa.global_env import global_config

    wanted = global_config.ray_accelerator_name
    nodes = [node for node in ray.nodes() if node["Alive"] and wanted in node["Resources"]]
    return dict(zip(_names(nodes), (str(node["NodeID"]) for node in nodes), strict=True))


def _names(hosts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of hosts, given what Ray says of each: their machines', numbered where several share one."""
    machines = list(map(machine_name, hosts))
    return [f"{name}:{n}" if machines.count(name) > 1 else name for n, name in enumerate(machines)]


def machine_name(info: Mapping[str, Any]) -> str:
    """Returns the name of the machine of a node, given what Ray says of the node."""
    return str(info.get("NodeManagerHostname") or info.get("NodeManagerAddress"))


def cluster_of(virtual_mesh: Any, choice: str | Cluster | None) -> Cluster:
    """Returns the cluster of Alpa's virtual mesh: its hosts, with the figures of their devices and links.

    A `Cluster` is returned as it is, without reduction servers, which Alpa can't use; figures are those of a machine's
    name or file, or measured once in a process on a CPU, or by Ray's name of the accelerator. Raises ValueError if
    hosts or devices are other numbers than Alpa's, or no data sheet is known.
    """
    num_hosts, devices = int(virtual_mesh.num_hosts), int(virtual_mesh.num_devices_per_host)
    if isinstance(choice, Cluster):
        shape = [host.num_devices for host in choice.hosts]
        if shape != [devices] * num_hosts:
            raise ValueError(
                f"the given cluster {choice.name} has hosts of {shape} devices, but Alpa is connected to {num_hosts} "
                f"hosts of {devices}; give a cluster that fits, or None"
            )
        return _without_servers(choice)
    if choice is not None:
        return _without_servers(named_cluster(choice, num_hosts, devices))
    from alpa.global_env import global_config

    if global_config.backend == "cpu":
        return _cpu_cluster(virtual_mesh, devices)
    return named_cluster(_machine(virtual_mesh.host_info), num_hosts, devices)


def _without_servers(cluster: Cluster) -> Cluster:
    return dataclasses.replace(cluster, reduction_servers=()) if cluster.reduction_servers else cluster


@contextlib.contextmanager
def connected(**size: int) -> Iterator[Any]:
    """Yields Alpa's virtual mesh of the cluster that Ray has, or of a part of it of this size."""
    import alpa
    from alpa.device_mesh import get_global_virtual_physical_mesh

    try:
        alpa.init("ray", **size)
    except (ConnectionError, RuntimeError) as error:
        raise RuntimeError(
            f"no cluster can be used: {error}; or let this command start one on this machine by --local N, for N "
            "devices"
        ) from None
    try:
        yield get_global_virtual_physical_mesh()
    finally:
        alpa.shutdown()


def connected_cluster() -> Cluster:
    """Connects Alpa to the running Ray cluster for good, and returns that. Raises RuntimeError if there is none."""
    import alpa
    from alpa.device_mesh import get_global_virtual_physical_mesh

    try:
        alpa.init("ray")
    except ConnectionError as error:
        raise RuntimeError(
            f"there is no Ray cluster to connect to ({error}); start one with `ray start --head`, or name a machine"
        ) from None
    except RuntimeError as error:
        raise RuntimeError(f"the Ray cluster can't be used: {error}; or name a machine in its place") from None
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


def _cpu_cluster(virtual_mesh: Any, devices: int) -> Cluster:
    """Ray nodes of one machine share its cores: its rates are divided among the devices of all of them."""
    names = host_names(virtual_mesh)
    machines = [machine_name(info) for info in virtual_mesh.host_info]
    hosts = [
        Host(names[n], measured_cpu(devices * machines.count(machine)), devices)
        for n, machine in zip(equal_hosts(virtual_mesh), machines, strict=True)
    ]
    usual = local_links()
    within, between = cpu_links(usual, hosts[0].device, devices, devices * machines.count(machines[0]))
    if len(set(machines)) > 1:
        between = usual[1]
    links = tuple(tuple(within if a == b else between for b in range(len(hosts))) for a in range(len(hosts)))
    cluster = Cluster(f"CPU cluster of {len(hosts)} x {devices}", tuple(hosts), links)
    if len(set(machines)) > 1:
        return cluster
    return dataclasses.replace(cluster, machine="local-cpu", **on_one_cpu())
