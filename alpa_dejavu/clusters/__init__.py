"""The hardware as data: machine types, clusters of them, and the submeshes that stages may have.

In: names of machine types, and JSON or YAML files of machines and clusters.
Out: a `Cluster` of hosts, devices and links in SI units; a `SearchSpace` of submeshes; the hosts of each stage.
`machine_file` and `cluster_file` say what the files have.
"""

from __future__ import annotations

import dataclasses

from alpa_dejavu._util.threads import usable_cores
from alpa_dejavu.clusters.cluster_file import is_cluster_file, price_figures, read_cluster
from alpa_dejavu.clusters.cpu_link import cpu_links
from alpa_dejavu.clusters.cpu_probe import measured_cpu, on_one_cpu
from alpa_dejavu.clusters.figures import of_figures, write_cluster
from alpa_dejavu.clusters.machine_file import (
    counted_machine,
    devices_and_hosts,
    figure_of,
    known_machines,
    read_machine,
)
from alpa_dejavu.clusters.machine_file import device as _device
from alpa_dejavu.clusters.machine_file import host_memory as _host_memory
from alpa_dejavu.problem import Cluster, Link, counted_name
from alpa_dejavu.problem.limits import MOST_HOSTS, at_most

__all__ = [
    "known_machines", "local_links", "machine_for", "named_cluster", "price_sources", "read_cluster", "write_cluster",
]  # fmt: skip


def named_cluster(name: str, num_hosts: int = 1, devices_per_host: int | None = None) -> Cluster:
    """Returns a cluster of equal hosts of a machine type, or of the machine or cluster that a file describes.

    Args:
        name: one of `known_machines()`, the path of a JSON or YAML file, or either with a number of hosts, as
            "2 x p3.16xlarge".
        num_hosts: how many hosts there are; where the name or the file says that 1, or the same number.
        devices_per_host: how many devices of each host are used; None: all.

    Raises:
        ValueError: no such machine, what is wrong with a file, or hosts and devices that there aren't.

    >>> named_cluster("p3.16xlarge", num_hosts=2).num_devices
    16
    >>> named_cluster("2 x p3.16xlarge").name
    '2 x p3.16xlarge'
    """
    name, counted = counted_machine(name)
    if counted is not None:
        if num_hosts not in (1, counted):
            raise ValueError(
                f"cluster is '{counted} x {name}', but {num_hosts} hosts are asked for; say their number once"
            )
        num_hosts = counted
    if num_hosts < 1:
        raise ValueError(f"hosts is {num_hosts}, but must be at least 1; give more")
    at_most("hosts", num_hosts, MOST_HOSTS, "plan for a part of the cluster")
    if is_cluster_file(name):
        return _whole(name, num_hosts, devices_per_host)
    data = read_machine(name)
    listed, hosts_listed = devices_and_hosts(data)
    if hosts_listed is not None and hosts_listed != num_hosts:
        raise ValueError(f"{name} describes {hosts_listed} hosts, but {num_hosts} are asked for; ask for those")
    whole = listed or usable_cores()
    used = whole if devices_per_host is None else devices_per_host
    if data["device"] is not None and used > whole:
        raise ValueError(f"a {data['name']} has {whole} devices, but {used} are asked for on a host; take more hosts")
    device = measured_cpu(used * num_hosts) if data["device"] is None else _device(data)
    hosts = [f"{data['name']}-{n}" for n in range(num_hosts)]
    within, between = of_figures(Link, data["within"]), of_figures(Link, data["between"])
    if data["device"] is None:
        within, between = cpu_links((within, between), device, used, used * num_hosts)
    # Price and memory are those of a whole machine, however many of its devices are used.
    of_host = figure_of(data, "price_per_hour"), figure_of(data, "memory_margin"), _host_memory(data)
    cluster = Cluster.uniform(counted_name(num_hosts, data["name"]), hosts, device, used, within, between, *of_host)
    return dataclasses.replace(
        cluster,
        machine=data["name"],
        machine_file="" if name in known_machines() else name,
        **(on_one_cpu() if data["device"] is None else {}),
    )


def _whole(path: str, num_hosts: int, devices_per_host: int | None) -> Cluster:
    """Returns the cluster of a file; raises ValueError unless it has the hosts and devices that are asked for."""
    cluster = read_cluster(path)
    has = len(cluster.hosts), cluster.num_devices
    described = f"{path} describes {has[0]} hosts with {has[1]} devices, but {num_hosts} hosts"
    if devices_per_host is None and num_hosts not in (1, has[0]):
        raise ValueError(f"{described} are asked for; ask for those, or leave their number out")
    if devices_per_host is not None and (num_hosts, num_hosts * devices_per_host) != has:
        raise ValueError(f"{described} of {devices_per_host} devices are asked for; give their file")
    return cluster


def price_sources(name: str) -> tuple[str, ...]:
    """Returns where the hourly prices of a cluster's hosts are from, once each, by a name as `named_cluster` takes it.

    >>> price_sources("2 x p3.16xlarge")
    ('AWS EC2 list price, on demand, Linux, us-east-1, 2024',)
    """
    name, _ = counted_machine(name)
    figures = price_figures(name) if is_cluster_file(name) else [read_machine(name).get("price_per_hour")]
    return tuple(dict.fromkeys(figure["source"] for figure in figures if figure is not None))


def machine_for(accelerator_type: str) -> str | None:
    """Returns the known machine type whose devices have this name in Ray; None if there is none. Of several it is the
    one with the most devices, and of equally large ones the first by its file's name.

    >>> machine_for("V100")
    'p3.16xlarge'
    """
    fitting = [name for name in known_machines() if read_machine(name).get("accelerator_type") == accelerator_type]
    return max(fitting, key=lambda name: devices_and_hosts(read_machine(name))[0] or 0, default=None)


def local_links() -> tuple[Link, Link]:
    """Returns the links of CPU devices on one machine, within a host and between two, by `local-cpu.json`."""
    data = read_machine("local-cpu")
    return of_figures(Link, data["within"]), of_figures(Link, data["between"])
