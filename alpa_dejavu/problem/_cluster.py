"""The hardware: devices in hosts, and a link from every host to every host."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util import units
from alpa_dejavu.problem import checks
from alpa_dejavu.problem._device import Device, HostMemory
from alpa_dejavu.problem._link import Link, ReductionServer
from alpa_dejavu.problem.limits import MOST_DEVICES_PER_HOST, MOST_HOSTS, at_most


@final
@dataclasses.dataclass(frozen=True)
class Host:
    """A machine of a cluster, with its devices.

    Attributes:
        memory_margin: the share of its devices' memory that plans leave free as long as no peak was measured; None: the
            planner's default.
        slowdown: the factor by which its devices are slower than its machine type's figures say; `device` includes it.
    """

    name: str
    device: Device
    num_devices: int
    price_per_hour: float | None = None
    memory_margin: float | None = None
    memory: HostMemory | None = None
    slowdown: float = dataclasses.field(default=1.0, compare=False)

    def __post_init__(self) -> None:
        checks.fields(f"host {self.name}", self, "num_devices", "price_per_hour")
        at_most(f"host {self.name}: num_devices", self.num_devices, MOST_DEVICES_PER_HOST, "plan for more hosts")
        if self.memory_margin is not None:
            checks.share(f"host {self.name}", "memory_margin", self.memory_margin)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LinkKinds:
    """The different links among H hosts, in the order in which the rows of `Cluster.links` first have them, and the
    place among them, shape (H, H), of the link from each host to each other, or within it.
    """

    links: tuple[Link, ...]
    numbers: NDArray[np.int32]

    @functools.cached_property
    def within(self) -> tuple[int, ...]:
        """Returns the place of the link within each host."""
        return tuple(np.diagonal(self.numbers).tolist())

    def between(self, hosts: Sequence[int]) -> list[Link]:
        """Returns the different links from one to another of some hosts, given by their indices, in their order."""
        numbers = self.numbers if len(hosts) == len(self.numbers) else self.numbers[np.ix_(hosts, hosts)]
        apart = np.where(np.eye(len(hosts), dtype=np.bool_), len(self.links), numbers).ravel()
        present = np.flatnonzero(np.bincount(apart, minlength=len(self.links))[: len(self.links)])
        if len(present) > 1:
            present = present[np.argsort([np.argmax(apart == number) for number in present])]
        return [self.links[number] for number in present.tolist()]


@final
@dataclasses.dataclass(frozen=True)
class Cluster:
    """The hosts that a plan may use, and the links between them.

    Attributes:
        links: `links[a][b]` goes from host a to host b, `links[a][a]` joins the devices within host a.
        cores: the number of cores of the one CPU that all devices of all hosts are parts of; None: they aren't. What
            one device leaves idle, the others use, so a pipeline takes as long as all its stages have work together.
        media: the rate, in bytes per second, of each medium that several links share, such as a host's network card, by
            the name that `Link.shares` has; one that isn't listed has the rate of a single link.
        reduction_servers: hosts without accelerators that may add up gradients; each is joined to all hosts.
        waiting: the share of its time, below 1, that a device waits for others of its process, where all share the
            cores of one CPU.
        checkpoint_bytes_per_s: the bytes per second at which all hosts together read a checkpoint; None: not known.
    """

    name: str
    hosts: tuple[Host, ...]
    links: tuple[tuple[Link, ...], ...] = dataclasses.field(hash=False)
    cores: int | None = None
    media: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    reduction_servers: tuple[ReductionServer, ...] = ()
    waiting: float = 0.0
    checkpoint_bytes_per_s: float | None = None
    # They say where the figures are from: the same cluster read from a file of its own is equal.
    machine: str = dataclasses.field(default="", compare=False)
    machine_file: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ValueError(f"cluster {self.name}: has no hosts; connect to a Ray cluster or name a known cluster")
        names = [*(host.name for host in self.hosts), *(server.name for server in self.reduction_servers)]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"cluster {self.name}: the host {twice!r} is there twice; give each its own name")
        if len(self.links) != len(self.hosts) or any(len(row) != len(self.hosts) for row in self.links):
            raise ValueError(
                f"cluster {self.name}: links is {len(self.links)} rows of {[len(row) for row in self.links]}, "
                f"but {len(self.hosts)} hosts need a row and a column each"
            )
        for medium, rate in self.media.items():
            checks.positive(f"cluster {self.name}", f"media[{medium!r}]", rate)
        checks.share(f"cluster {self.name}", "waiting", self.waiting)
        checks.fields(f"cluster {self.name}", self, "checkpoint_bytes_per_s")

    @classmethod
    def uniform(
        cls,
        name: str,
        host_names: Sequence[str],
        device: Device,
        num_devices: int,
        within: Link,
        between: Link,
        price_per_hour: float | None = None,
        memory_margin: float | None = None,
        memory: HostMemory | None = None,
    ) -> Cluster:
        """Returns a cluster of equal hosts, with a link within each and one between any two."""
        at_most(f"cluster {name}: hosts", len(host_names), MOST_HOSTS, "plan for a part of the cluster")
        hosts = tuple(Host(host, device, num_devices, price_per_hour, memory_margin, memory) for host in host_names)
        count = len(hosts)
        links = tuple((between,) * n + (within,) + (between,) * (count - 1 - n) for n in range(count))
        return cls(name, hosts, links)

    @functools.cached_property
    def link_kinds(self) -> LinkKinds:
        """Returns the different links of the cluster, and which of them joins which hosts."""
        listed = list(itertools.chain.from_iterable(self.links))
        ids = np.fromiter(map(id, listed), np.int64, len(listed))
        objects = dict(zip(map(id, listed), listed, strict=True))
        kinds: dict[Link, int] = {}
        of_objects = np.array([kinds.setdefault(link, len(kinds)) for link in objects.values()], dtype=np.int32)
        order = np.argsort(list(objects))
        numbers = of_objects[order][np.searchsorted(np.array(list(objects))[order], ids)]
        return LinkKinds(tuple(kinds), numbers.reshape(len(self.hosts), len(self.hosts)))

    @property
    def shared(self) -> bool:
        """Returns whether all devices of the cluster are parts of one CPU."""
        return self.cores is not None

    def apart(self, num_hosts: int) -> bool:
        """Returns whether the devices of a stage on so many hosts are processes of one CPU: hosts that share it are Ray
        nodes, and only those of a single node are devices of one process.
        """
        return self.shared and num_hosts > 1

    def core_share(self, num_devices: int) -> float:
        """Returns the share of a core that each device has while so many of them compute; 1 where each has its own."""
        return 1.0 if self.cores is None else min(self.cores / num_devices, 1.0)

    @property
    def num_devices(self) -> int:
        """Returns the number of devices of all hosts of the cluster together."""
        return sum(host.num_devices for host in self.hosts)

    @property
    def host_numbers(self) -> dict[str, int]:
        """Returns the index of each host by its name."""
        return {host.name: n for n, host in enumerate(self.hosts)}

    def part(self, hosts: Sequence[int]) -> Cluster:
        """Returns the cluster of a selection of its hosts, given by indices and in that order, and their links."""
        links = tuple((self.links[n][n],) for n in hosts)
        if len(hosts) > 1:
            chosen = operator.itemgetter(*hosts)
            links = tuple(map(chosen, chosen(self.links)))
        return dataclasses.replace(self, hosts=tuple(self.hosts[n] for n in hosts), links=links)

    def slowest_link(self, hosts: Sequence[int]) -> Link:
        """Returns the slowest link among the given hosts (by index): of the least rate, then of the longest latency."""
        if not hosts:
            raise ValueError(f"cluster {self.name}: no hosts are given, so there is no link between them")
        chosen = sorted(set(hosts))
        if len(chosen) == 1:
            return self.links[chosen[0]][chosen[0]]
        return min(self.link_kinds.between(chosen), key=lambda link: (link.bytes_per_s, -link.latency_s))

    def check_rates(self) -> None:
        """Checks that no link of the cluster is faster than the memory of the devices at its two ends.

        Raises:
            ValueError: a link is faster; the message names its hosts.
        """
        memory = np.array([host.device.memory_bytes_per_s * host.num_devices for host in self.hosts])
        rates = np.array([max(link.bytes_per_s, link.sending[1]) for link in self.link_kinds.links])
        rate = rates[self.link_kinds.numbers]
        # Devices that are parts of one CPU have each other's share of the memory while these wait.
        most = np.full_like(rate, memory.sum()) if self.shared else np.minimum.outer(memory, memory)
        for a, b in np.argwhere(rate > most)[:1].tolist():
            raise ValueError(
                f"cluster {self.name}: the link from {self.hosts[a].name!r} to {self.hosts[b].name!r} has "
                f"{units.byte_rate(rate[a, b])}, but the memory of the devices at its ends "
                f"{units.byte_rate(most[a, b])}; look at its unit, or measure it again"
            )
