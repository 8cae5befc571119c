"""A cluster that has changed: hosts are lost, one has become slower, or devices or links are faster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

from alpa_dejavu._util.near_names import near
from alpa_dejavu.problem import Cluster, Device, Host, Link, counted_name

_FAIR = 1.5
_SLOWEST = 1e6


def without(cluster: Cluster, lost: Collection[str]) -> Cluster:
    """Returns the cluster without some of its hosts, given by name, and some devices of others, such as "host-1/3".

    A device is given by its host's name and its number there, from 0. A host whose devices are all lost is lost. If all
    devices are parts of one CPU, those that are left share it among fewer, and so are faster.

    Raises:
        ValueError: the cluster has no host of a name, a host has no device of a number, or no device would be left.

    >>> from alpa_dejavu.clusters import named_cluster
    >>> without(named_cluster("p3.16xlarge", 4), ["p3.16xlarge-1"]).name
    '3 x p3.16xlarge'
    >>> [host.num_devices for host in without(named_cluster("p3.16xlarge", 2), ["p3.16xlarge-1/3"]).hosts]
    [8, 7]
    """
    names = [host.name for host in cluster.hosts]
    devices = _lost_devices(cluster, lost)
    left = [n for n, host in enumerate(cluster.hosts) if len(devices.get(host.name, ())) < host.num_devices]
    if not left:
        raise ValueError(f"cluster {cluster.name} has only {_some(names)}: nothing is left without them")
    part = cluster.part(left)
    kept = tuple(
        dataclasses.replace(host, num_devices=host.num_devices - len(devices.get(host.name, ()))) for host in part.hosts
    )
    part = dataclasses.replace(part, hosts=kept)
    if cluster.shared:
        kept = _with_devices(kept, lambda device: device.slower(part.num_devices / cluster.num_devices))
    name = counted_name(len(left), cluster.machine) if cluster.machine else cluster.name
    fewer_devices = [f"{host.name}/{n}" for host in kept for n in sorted(devices.get(host.name, ()))]
    if fewer_devices:
        name += f" without {_some(fewer_devices, 'devices')}"
    return dataclasses.replace(part, name=name, hosts=kept)


def with_hosts(cluster: Cluster, joined: Mapping[str, int]) -> Cluster:
    """Returns the cluster with hosts that have joined it, whose numbers of devices are given by their names, each taken
    to be like the first one with as many devices.

    If all devices are parts of one CPU, it is now shared by more of them, and each is slower. ValueError if there is a
    host of this name already, none with as many devices, or if a cluster of one host is of no known machine type, which
    says what link joins two.

    >>> from alpa_dejavu.clusters import named_cluster
    >>> with_hosts(named_cluster("p3.16xlarge", 2), {"new": 8}).name
    '3 x p3.16xlarge'
    """
    for name, count in joined.items():
        if name in cluster.host_numbers:
            raise ValueError(f"cluster {cluster.name} has a host {name!r} already; give the new one another name")
        sizes = sorted({host.num_devices for host in cluster.hosts})
        if count not in sizes:
            raise ValueError(
                f"host {name} has {count} devices, but must be like one of cluster {cluster.name}, which have "
                f"{', '.join(map(str, sizes))}; plan for a cluster that has it"
            )
    alone = _link_of_two(cluster) if joined and len(cluster.hosts) == 1 else None
    counts = [host.num_devices for host in cluster.hosts]
    likes = [*range(len(counts)), *(counts.index(count) for count in joined.values())]
    names = [*cluster.host_numbers, *joined]
    hosts = tuple(dataclasses.replace(cluster.hosts[like], name=name) for like, name in zip(likes, names, strict=True))
    if cluster.shared:
        more = sum(host.num_devices for host in hosts) / cluster.num_devices
        hosts = _with_devices(hosts, lambda device: device.slower(more))

    def link(a: int, b: int) -> Link:
        if alone is not None and a != b:
            return alone
        end = likes[b] if a == b or likes[a] != likes[b] else (likes[b] + 1) % len(counts)
        return cluster.links[likes[a]][end]

    links = tuple(tuple(link(a, b) for b in range(len(hosts))) for a in range(len(hosts)))
    name = counted_name(len(hosts), cluster.machine) if cluster.machine else cluster.name
    return dataclasses.replace(cluster, name=name, hosts=hosts, links=links)


def _link_of_two(cluster: Cluster) -> Link:
    """The link between two hosts of the machine type of a cluster that has one host."""
    from alpa_dejavu.clusters import named_cluster

    machine = cluster.machine_file or cluster.machine
    if not machine:
        raise ValueError(f"cluster {cluster.name} has one host of no known machine type, so that its link to another "
                         "isn't known; plan for a cluster that has both")  # fmt: skip
    return named_cluster(machine, 2).links[0][1]


def _lost_devices(cluster: Cluster, lost: Collection[str]) -> dict[str, set[int]]:
    """The numbers of the devices that are lost, by their host's name, for hosts and devices as `without` takes them."""
    counts = {host.name: host.num_devices for host in cluster.hosts}
    numbers: dict[str, set[int]] = {}
    for name in lost:
        host, _, number = (name, "", "") if name in counts else name.rpartition("/")
        if host not in counts:
            raise ValueError(f"cluster {cluster.name} has no host {name!r}{near(name, counts)}; it has "
                             f"{_some(list(counts))}")  # fmt: skip
        if number and not (number.isdecimal() and int(number) < counts[host]):
            raise ValueError(f"host {host} has no device {number!r}, but devices 0..{counts[host] - 1}; give one of "
                             f"these, such as {host}/0")  # fmt: skip
        numbers.setdefault(host, set()).update([int(number)] if number else range(counts[host]))
    return numbers


def slowed(cluster: Cluster, host: str, factor: float) -> Cluster:
    """Returns the cluster in which the devices of one host, given by its name, take `factor` times as long for
    everything; ValueError if it has no such host, or the factor isn't from 1e-6 to 1e6.
    """
    if not 1 / _SLOWEST <= factor <= _SLOWEST:
        raise ValueError(
            f"host {host} is {factor!r} times as slow, but that must be from {1 / _SLOWEST:g} to {_SLOWEST:g}; plan "
            "without a host that is slower"
        )
    names = [other.name for other in cluster.hosts]
    if host not in names:
        raise ValueError(f"cluster {cluster.name} has no host {host!r}{near(host, names)}; it has {_some(names)}")
    n, hosts = names.index(host), list(cluster.hosts)
    slow = hosts[n].device.slower(factor)
    hosts[n] = dataclasses.replace(hosts[n], device=slow, slowdown=factor * hosts[n].slowdown)
    return dataclasses.replace(cluster, hosts=tuple(hosts))


def faster_devices(cluster: Cluster, name: str, factor: float) -> tuple[Cluster, Mapping[Device, Device]]:
    """Returns the cluster with devices of a name `factor` times as fast, and for each new device the old one."""
    old = {host.device for host in cluster.hosts if host.device.name == name}
    faster = {device: device.slower(1 / factor) for device in old}
    hosts = _with_devices(cluster.hosts, lambda device: faster.get(device, device))
    return dataclasses.replace(cluster, hosts=hosts), {new: device for device, new in faster.items()}


def with_more_memory(cluster: Cluster, factor: float) -> Cluster:
    """Returns the cluster in which each device has `factor` times the memory."""

    def more(device: Device) -> Device:
        return dataclasses.replace(device, memory_bytes=device.memory_bytes * factor)

    return dataclasses.replace(cluster, hosts=_with_devices(cluster.hosts, more))


def _with_devices(hosts: Sequence[Host], change: Callable[[Device], Device]) -> tuple[Host, ...]:
    return tuple(dataclasses.replace(host, device=change(host.device)) for host in hosts)


def faster_links(cluster: Cluster, ends: Collection[tuple[int, int]], factor: float) -> Cluster:
    """Returns the cluster in which the links between some pairs of hosts, given by index, carry `factor` times the
    bytes per second.

    The media that these links share with others carry so many times as much, too; latencies stay as they are.
    """
    faster = frozenset(ends)
    links = tuple(
        tuple(link.carrying(factor) if (a, b) in faster else link for b, link in enumerate(row))
        for a, row in enumerate(cluster.links)
    )
    over = {medium for a, b in ends for medium in cluster.links[a][b].shares}
    media = {medium: rate * factor if medium in over else rate for medium, rate in cluster.media.items()}
    return dataclasses.replace(cluster, links=links, media=media)


def fair_ratio(before: Cluster, after: Cluster) -> float:
    """Returns how many times as long as before a training step may take on a changed cluster if only the lower total
    rate of its devices slows it down: 1.5 times the ratio of that rate before to that after the change.

    >>> from alpa_dejavu.clusters import named_cluster
    >>> fair_ratio(named_cluster("p3.16xlarge", 3), named_cluster("p3.16xlarge", 2))
    2.25
    """
    rates = [sum(host.num_devices * host.device.rate("float32") for host in whole.hosts) for whole in (before, after)]
    return _FAIR * rates[0] / rates[1]


def _some(names: list[str], kind: str = "hosts") -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:3])} ... {names[-1]} ({len(names)} {kind})"
