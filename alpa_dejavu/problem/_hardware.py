"""A cluster in a few words, as a plan holds it, and which of its hosts are interchangeable."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Annotated, final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.dataclass_format import Rare
from alpa_dejavu._util.format_fields import MOST, Bytes, Positive, Text, listed, stated, whole
from alpa_dejavu.problem import checks
from alpa_dejavu.problem._cluster import Cluster
from alpa_dejavu.problem._link import Link


def counted_name(num_hosts: int, machine: str) -> str:
    """Returns the name of a cluster of a number of hosts of one machine type.

    >>> counted_name(7, "p3.16xlarge")
    '7 x p3.16xlarge'
    """
    return f"{num_hosts} x {machine}"


@final
@dataclasses.dataclass(frozen=True)
class HostSummary:
    """A summary of one host of a cluster, with the figures of it that a plan depends on, as `Host` has them."""

    name: Text
    num_devices: Annotated[int, whole("a whole number of devices, at least 1", 1, MOST)]
    device: Annotated[str, stated("text: what its devices are")]
    memory_bytes: Bytes
    kind: Rare[Annotated[int, whole("a whole number: hosts of equal ones are interchangeable")]] = 0
    slowdown: Rare[Positive] = 1.0

    def __post_init__(self) -> None:
        checks.fields(f"host {self.name}", self, "num_devices slowdown")


@final
@dataclasses.dataclass(frozen=True)
class ClusterSummary:
    """The cluster that a plan was made for: its hosts, in Alpa's order, with those that the plan leaves unused."""

    hosts: Annotated[tuple[HostSummary, ...], listed("a list of at least one host", min_length=1)]
    machine: Annotated[str, stated("text: the machine type that all hosts are of, empty if they aren't of one")] = ""
    machine_file: Annotated[str, stated("text: the path of that type's file, empty if it comes with the package")] = ""
    cores: Annotated[
        Annotated[int, whole("", 1, MOST)] | None, stated("a whole number of cores, at least 1, or null")
    ] = None

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ValueError("hosts is empty, but must have at least one host; give those of the cluster")

    @classmethod
    def of(cls, cluster: Cluster, kinds: Sequence[int]) -> ClusterSummary:
        """Returns the summary of a cluster, given for each of its hosts the number of its kind (`host_kinds`)."""
        hosts = tuple(
            HostSummary(host.name, host.num_devices, host.device.name, host.device.memory_bytes, kind, host.slowdown)
            for host, kind in zip(cluster.hosts, kinds, strict=True)
        )
        return cls(hosts, cluster.machine, cluster.machine_file, cluster.cores)

    @property
    def alike(self) -> bool:
        """Returns whether all hosts of the cluster are interchangeable."""
        return len({host.kind for host in self.hosts}) == 1

    @property
    def shared(self) -> bool:
        """Returns whether all devices of the cluster are parts of one CPU."""
        return self.cores is not None

    @property
    def text(self) -> str:
        """Returns the cluster's hosts and their devices in a few words.

        >>> ClusterSummary((HostSummary("a", 8, "V100", 2**34), HostSummary("b", 8, "V100", 2**34))).text
        '2 hosts of 8 V100 with 16.00 GiB'
        """
        counts: dict[str, int] = {}
        for host in self.hosts:
            slow = "" if host.slowdown == 1 else f", {host.slowdown:g} times as slow"
            of = f"of {host.num_devices} {host.device} with {units.size(host.memory_bytes)}{slow}"
            counts[of] = counts.get(of, 0) + 1
        return " and ".join(f"{count} host{'s' if count > 1 else ''} {of}" for of, count in counts.items())

    def without(self, lost: Collection[str]) -> ClusterSummary:
        """Returns the summary of the cluster without its lost hosts, which are given by name."""
        return dataclasses.replace(self, hosts=tuple(host for host in self.hosts if host.name not in lost))


def host_kinds(cluster: Cluster) -> tuple[int, ...]:
    """Returns for each host of a cluster the number of its kind (hosts of one kind are interchangeable), from 0 in the
    order of the hosts.

    Two hosts are of one kind if the cluster stays the same when they change places: devices, their own memory, the
    links within, and those to and from every other host are alike. So all hosts of a kind have the same link to each
    host of another.
    Names of media that links share (`Link.shares`) may differ: each host's network card has a name of its own.

    >>> from alpa_dejavu.clusters import named_cluster
    >>> host_kinds(named_cluster("p3.16xlarge", 4))
    (0, 0, 0, 0)
    """
    links, numbers = cluster.link_kinds.links, cluster.link_kinds.numbers
    figures = dict[tuple[Link, int], int]()
    same = [figures.setdefault((dataclasses.replace(n, shares=()), len(n.shares)), len(figures)) for n in links]
    to = np.array(same)[numbers]
    ends, of_host = np.ascontiguousarray(to.T), [dataclasses.replace(host, name="") for host in cluster.hosts]
    uses = Counter[str]()
    for link, count in zip(links, np.bincount(numbers.ravel(), minlength=len(links)).tolist(), strict=True):
        uses.update(dict.fromkeys(link.shares, count))

    def alike(a: int, b: int) -> bool:
        equal = (to[a] == to[b]) & (ends[a] == ends[b])
        equal[[a, b]] = to[a, a] == to[b, b], to[a, b] == to[b, a]
        return of_host[a] == of_host[b] and bool(equal.all()) and (not uses or _same_media(cluster, a, b, uses))

    kinds, first = list[int](), list[int]()
    for host in range(len(cluster.hosts)):
        kind = next((kind for kind, other in enumerate(first) if alike(host, other)), len(first))
        if kind == len(first):
            first.append(host)
        kinds.append(kind)
    return tuple(kinds)


def _same_media(cluster: Cluster, a: int, b: int, uses: Counter[str]) -> bool:
    """Whether media keep what goes over them when hosts a and b change places.

    The media of the one become those of the other. What links of other hosts go over as well has to stay.
    """
    links, others = cluster.links, [host for host in range(len(cluster.hosts)) if host not in (a, b)]
    pairs = [(links[a][a], links[b][b]), (links[a][b], links[b][a])]
    pairs += [pair for c in others for pair in ((links[a][c], links[b][c]), (links[c][a], links[c][b]))]
    renamed: dict[str, str] = {}
    exchanged = Counter[str]()
    for own, other in pairs:
        for medium, replacement in zip(own.shares, other.shares, strict=True):
            exchanged.update((medium, replacement))
            if (
                renamed.setdefault(medium, replacement) != replacement
                or renamed.setdefault(replacement, medium) != medium
            ):
                return False
    return all(
        cluster.media.get(medium) == cluster.media.get(replacement)
        and (medium == replacement or uses[medium] == exchanged[medium])
        for medium, replacement in renamed.items()
    )
