"""The hardware: devices in hosts, and a link from every host to every host."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

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
        price_per_hour: what it costs an hour, in US dollars; None: not known.
        memory_margin: the share of its devices' memory that plans leave free as long as no peak was measured; None: the
            planner's default.
        memory: its own memory, to which stages may offload what they keep; None: nothing is known of it.
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
@dataclasses.dataclass(frozen=True)
class Cluster:
    """The hosts that a plan may use, and the links between them.

    Attributes:
        hosts: in Alpa's order.
        links: `links[a][b]` goes from host a to host b, `links[a][a]` joins the devices within host a.
        cores: the number of cores of the one CPU that all devices of all hosts are parts of; None: they aren't. What
            one device leaves idle, the others use, so a pipeline takes as long as all its stages have work together.
        media: the rate, in bytes per second, of each medium that several links share, such as a host's network card, by
            the name that `Link.shares` has; one that isn't listed has the rate of a single link.
        reduction_servers: hosts without accelerators that may add up gradients; each is joined to all hosts.
        waiting: the share of its time, below 1, that a device waits for others of its process, where all share the
            cores of one CPU.
        checkpoint_bytes_per_s: the bytes per second at which all hosts together read a checkpoint; None: not known.
        machine: the name of the machine type that all hosts are of; empty: they aren't of one.
    """

    name: str
    hosts: tuple[Host, ...]
    links: tuple[tuple[Link, ...], ...]
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
        links = tuple(tuple(within if a is b else between for b in hosts) for a in hosts)
        return cls(name, hosts, links)

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
        links = tuple(tuple(self.links[a][b] for b in hosts) for a in hosts)
        return dataclasses.replace(self, hosts=tuple(self.hosts[n] for n in hosts), links=links)

    def slowest_link(self, hosts: Sequence[int]) -> Link:
        """Returns the slowest link among the given hosts (by index): of the least rate, then of the longest latency."""
        if not hosts:
            raise ValueError(f"cluster {self.name}: no hosts are given, so there is no link between them")
        chosen = sorted(set(hosts))
        pairs = [self.links[a][b] for a in chosen for b in chosen if a != b] or [self.links[chosen[0]][chosen[0]]]
        return min(pairs, key=lambda link: (link.bytes_per_s, -link.latency_s))

    def check_rates(self) -> None:
        """Raises ValueError if a link of the cluster is faster than the memory of the devices at its two ends."""
        memory = [host.device.memory_bytes_per_s * host.num_devices for host in self.hosts]
        for a, row in enumerate(self.links):
            for b, link in enumerate(row):
                # Devices that are parts of one CPU have each other's share of the memory while these wait.
                most = sum(memory) if self.shared else min(memory[a], memory[b])
                rate = max(link.bytes_per_s, link.sending[1])
                if rate > most:
                    raise ValueError(
                        f"cluster {self.name}: the link from {self.hosts[a].name!r} to {self.hosts[b].name!r} has "
                        f"{units.byte_rate(rate)}, but the memory of the devices at its ends {units.byte_rate(most)}; "
                        "look at its unit, or measure it again"
                    )
