"""Files of whole clusters: hosts of any machine types, and a link for every pair of them in both directions.

A file lists `hosts`, each with a name and a machine type (or a device of its own), and `links`;
`examples/clusters/two-unlike-hosts.yaml` is one.

Its links go from hosts to hosts, each named by itself, by its machine type, or by "*", and the last one that speaks of
a pair counts; every pair has to have one in each direction, so that one host alone needs none. What goes over links
that share a name at a time divides what `media` gives that name, or else what one of the links has. Hosts without
accelerators that may add up gradients are `reduction_servers`, each with a name and `bytes_per_s`.
`checkpoint_bytes_per_s` is the rate at which all hosts together read a checkpoint. `schemas/cluster-1.json` has every
key and unit.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from alpa_dejavu._util.data_file import peek_file, read_checked_file
from alpa_dejavu._util.near_names import near
from alpa_dejavu._util.threads import usable_cores
from alpa_dejavu.clusters import machine_file as machine_file
from alpa_dejavu.clusters.cpu_link import cpu_links
from alpa_dejavu.clusters.cpu_probe import measured_cpu, on_one_cpu
from alpa_dejavu.clusters.figures import of_figures, si
from alpa_dejavu.problem import Cluster, Host, Link, ReductionServer

if TYPE_CHECKING:
    from alpa_dejavu.clusters.formats import MachineData

REMEDY = "schemas/cluster-1.json says what each key may be, and `write_cluster` writes a right one"
EVERY = "*"
_OF_HOST = ("price_per_hour", "memory_margin", "host_memory")
"""A host has these of its machine type where its file says nothing else."""


def is_cluster_file(name: str) -> bool:
    """Returns whether a name is the path of a file that lists hosts; whether that is right isn't checked."""
    if name in machine_file.known_machines():
        return False
    data = peek_file(pathlib.Path(name))
    return isinstance(data, dict) and "hosts" in data


def read_cluster(path: str | os.PathLike[str]) -> Cluster:
    """Reads a cluster, its hosts and the links between them, from a JSON or YAML file; ValueError says what is wrong
    with it and where, such as a pair of hosts without a link, an unknown unit or an impossible rate.
    """
    return _File(pathlib.Path(path)).cluster()


def price_figures(path: str | os.PathLike[str]) -> list[Mapping[str, Any] | None]:
    """Returns the hourly price of each host of a cluster file, its own or its machine type's, as files have it."""
    file = _File(pathlib.Path(path))
    both: list[Mapping[str, Any]] = [{**(file.machine(n) or {}), **host} for n, host in enumerate(file.data["hosts"])]
    return [figures.get("price_per_hour") for figures in both]


@final
class _File:
    """A file with what its places in the text are."""

    def __init__(self, path: pathlib.Path) -> None:
        from alpa_dejavu.clusters.formats import ClusterData

        file = read_checked_file(path, ClusterData, REMEDY)
        self.path, self.data, self.wrong = path, file.data, file.problem

    def cluster(self) -> Cluster:
        self._names = [host["name"] for host in self.data["hosts"]]
        for n, name in enumerate(self._names):
            if name in self._names[:n]:
                raise self.wrong(("hosts", n, "name"), f"the host {name!r} is there twice; give each its own name")
        machines = [self.machine(n) for n in range(len(self._names))]
        hosts, within = self._hosts(machines)
        links = self._links(within)
        media = {name: si(rate) for name, rate in self.data.get("media", {}).items()}
        used = {medium for row in links for link in row for medium in link.shares}
        unused = sorted(set(media) - used)
        if unused:
            wrong = f"the medium {unused[0]!r} is shared by no link{near(unused[0], used)}"
            raise self.wrong(("media", unused[0]), wrong)
        local = all(machine is not None and machine["device"] is None for machine in machines)
        own: dict[str, Any] = {name: self.data[name] for name in ("cores", "waiting") if name in self.data}
        if "checkpoint_bytes_per_s" in self.data:
            own["checkpoint_bytes_per_s"] = si(self.data["checkpoint_bytes_per_s"])
        shared: dict[str, Any] = (on_one_cpu() if local else {}) | own
        try:
            cluster = Cluster(self.data["name"], hosts, links, media=media, reduction_servers=self._servers(), **shared)
            cluster.check_rates()
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}; {REMEDY}") from None
        return cluster

    def _servers(self) -> tuple[ReductionServer, ...]:
        """Returns the hosts without accelerators, whose names have to be their own."""
        listed = self.data.get("reduction_servers", [])
        names, servers = list(self._names), list[ReductionServer]()
        for n, server in enumerate(listed):
            if server["name"] in names:
                wrong = f"the host {server['name']!r} is there twice; give each its own name"
                raise self.wrong(("reduction_servers", n, "name"), wrong)
            names.append(server["name"])
            servers.append(of_figures(ReductionServer, server))
        return tuple(servers)

    def machine(self, n: int) -> MachineData | None:
        """Returns what a host's machine type says, None where it has none; the type's file may lie beside this one."""
        host = self.data["hosts"][n]
        name, own = host.get("machine"), {"device", "devices", "within"} - set(host)
        if name is None:
            if own:
                wrong = f"the host {host['name']!r} has neither a machine nor {', '.join(sorted(own))} of its own"
                raise self.wrong(("hosts", n), wrong)
            return None
        if "device" in host:
            wrong = f"the host {host['name']!r} has both a machine and a device; leave one out"
            raise self.wrong(("hosts", n, "device"), wrong)
        beside = self.path.parent / name
        is_type = name in machine_file.known_machines() or not os.path.isfile(beside)
        try:
            machine = machine_file.read_machine(name if is_type else str(beside))
        except ValueError as error:
            raise self.wrong(("hosts", n, "machine"), str(error)) from None
        most, _ = machine_file.devices_and_hosts(machine)
        if host.get("devices", 1) > (most or host.get("devices", 1)):
            wrong = f"the host {host['name']!r} has {host['devices']} devices, but a {name} has {most}"
            raise self.wrong(("hosts", n, "devices"), wrong)
        return machine

    def _hosts(self, machines: Sequence[MachineData | None]) -> tuple[tuple[Host, ...], list[Link]]:
        """The hosts, and the links within them."""
        hosts, within = [], []
        measured = [machine is not None and machine["device"] is None for machine in machines]
        counts: list[int] = [
            host.get("devices")
            or machine_file.devices_and_hosts(machine or {"devices_per_host": None})[0]
            or usable_cores()
            for host, machine in zip(self.data["hosts"], machines, strict=True)
        ]
        local = sum(count for count, is_local in zip(counts, measured, strict=True) if is_local)
        for n, (entry, machine) in enumerate(zip(self.data["hosts"], machines, strict=True)):
            try:
                device = (
                    measured_cpu(local) if measured[n] else machine_file.device(entry if machine is None else machine)
                )
                inside: Mapping[str, Any] = entry if "within" in entry or machine is None else machine
                link = _between(link_of(inside["within"]), "", "")
                own = measured[n] and inside is machine
                within.append(cpu_links((link, link), device, counts[n], local)[0] if own else link)
                says = {name: entry if name in entry or machine is None else machine for name in _OF_HOST}
                figures: dict[str, Any] = {name: machine_file.figure_of(says[name], name) for name in _OF_HOST[:2]}
                memory = machine_file.host_memory(says["host_memory"])
                hosts.append(Host(entry["name"], device, counts[n], memory=memory, **figures))
            except ValueError as error:
                raise self.wrong(("hosts", n), f"the host {entry['name']!r}: {error}") from None
        return tuple(hosts), within

    def _links(self, within: Sequence[Link]) -> tuple[tuple[Link, ...], ...]:
        """Returns the links of all pairs; the last entry that speaks of a pair counts."""
        by_pair: dict[tuple[int, int], Link] = {(n, n): link for n, link in enumerate(within)}
        for n, entry in enumerate(self.data.get("links", ())):
            ends = self._ends(n, "from"), self._ends(n, "to")
            ways = [ends, ends[::-1]] if entry.get("both_ways", False) else [ends]
            pairs = [(a, b) for sources, targets in ways for a in sources for b in targets if a != b]
            if not pairs and len(self._names) > 1:
                wrong = f"links[{n}] goes from {entry['from']!r} to itself; the link within a host is its key 'within'"
                raise self.wrong(("links", n), wrong)
            try:
                link = link_of(entry)
                by_pair |= {(a, b): _between(link, self._names[a], self._names[b]) for a, b in pairs}
            except ValueError as error:
                raise self.wrong(("links", n), f"links[{n}]: {error}") from None
        for a, source in enumerate(self._names):
            for b, target in enumerate(self._names):
                if (a, b) not in by_pair:
                    pair = f"from {source!r} to {target!r}"
                    raise self.wrong(("links",), f"links has none {pair}; add it, or a first one from and to {EVERY!r}")
        every = range(len(within))
        return tuple(tuple(by_pair[a, b] for b in every) for a in every)

    def _ends(self, n: int, key: str) -> list[int]:
        """The hosts that one end of an entry speaks of."""
        entry: Mapping[str, Any] = self.data["links"][n]
        value = entry[key]
        machines = [host.get("machine") for host in self.data["hosts"]]
        ends: list[int] = []
        for name in [value] if isinstance(value, str) else value:
            listed = self._names if name in self._names else machines
            these = [m for m, other in enumerate(listed) if name in (other, EVERY)]
            if not these:
                choices = sorted({*self._names, *filter(None, machines)})
                wrong = f"links[{n}].{key} names {name!r}{near(name, choices)}, which is no host (known are {choices})"
                raise self.wrong(("links", n, key), wrong)
            ends += these
        return list(dict.fromkeys(ends))


def link_of(figures: Mapping[str, Any]) -> Link:
    """Returns the link that an entry of a cluster file describes."""
    shares = figures.get("shares", ())
    named = (shares,) if isinstance(shares, str) else tuple(shares)
    return of_figures(Link, {key: figure for key, figure in figures.items() if key != "shares"}, shares=named)


def _between(link: Link, source: str, target: str) -> Link:
    """Returns the link between two hosts: {from} and {to} in the names of media stand for their names."""
    if not link.shares:
        return link
    names = tuple(name.replace("{from}", source).replace("{to}", target) for name in link.shares)
    return dataclasses.replace(link, shares=names)
