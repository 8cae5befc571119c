"""The hardware: devices in hosts, and a link from every host to every host."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util import units
from alpa_dejavu.problem import checks
from alpa_dejavu.problem._host_memory import HostMemory
from alpa_dejavu.problem._link import Link, ReductionServer
from alpa_dejavu.problem.limits import MOST_DEVICES_PER_HOST, MOST_HOSTS, at_most

_APART = 8
"""How many times as much cache the lines of strided reads take at the next rate that is known."""


@final
@dataclasses.dataclass(frozen=True)
class SmallProducts:
    """The rate of the matrix products that are too small for a device's fast matrix library, and how long that library
    takes to start.

    Attributes:
        below_flop: the floating-point operations from which on a product runs at the device's full rate; products of
            fewer are small, if they have no batch dimension.
        share: the part of the full rate that small products reach.
        library_s: the seconds that the library takes for each product besides; None: none.
    """

    below_flop: float
    share: float
    library_s: float | None = None

    def __post_init__(self) -> None:
        checks.fields("small products", self, "below_flop share", "library_s")

    def slower(self, factor: float) -> SmallProducts:
        """Returns them with a library that takes `factor` times as long to start."""
        return self if self.library_s is None else dataclasses.replace(self, library_s=self.library_s * factor)


@final
@dataclasses.dataclass(frozen=True)
class StridedReads:
    """The rates at which a device reads arrays against their order in memory, where a cache line is fetched per
    element.

    A line is needed again for its other elements, after the lines that are read in between. The more cache these take,
    the further away it lies then. Between the three rates, the logarithm of the rate is linear in that of the cache.

    Attributes:
        bytes_per_s: the rate of an operator whose lines take eight times `cached_bytes`, or more.
        cached_bytes_per_s: the rate of an operator whose lines take `cached_bytes`.
        cached_bytes: how much the cache of one core holds, in bytes.
        near_bytes_per_s: the rate of an operator whose lines take an eighth of `cached_bytes`, or less; None: the same
            as `cached_bytes_per_s`.
    """

    bytes_per_s: float
    cached_bytes_per_s: float
    cached_bytes: float
    near_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        checks.fields("strided reads", self, "bytes_per_s cached_bytes_per_s cached_bytes near_bytes_per_s")

    def rate(self, cache_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the bytes per second of operators, by the cache that their lines take, shape (operators,).

        >>> StridedReads(1.0, 8.0, 64.0, 16.0).rate(np.array([1.0, 8.0, 64.0, 128.0, 512.0, 4096.0])).tolist()
        [16.0, 16.0, 8.0, 4.0, 1.0, 1.0]
        """
        near = self.cached_bytes_per_s if self.near_bytes_per_s is None else self.near_bytes_per_s
        sizes = self.cached_bytes / _APART, self.cached_bytes, self.cached_bytes * _APART
        rates = near, self.cached_bytes_per_s, self.bytes_per_s
        asked = np.log2(np.maximum(cache_bytes, sizes[0]))
        return np.asarray(np.exp2(np.interp(asked, np.log2(sizes), np.log2(rates))))

    def nearest(self, cache_bytes: NDArray[np.float64]) -> NDArray[np.str_]:
        """Returns which of the known rates is nearest to that of operators, by the cache that their lines take, as the
        name of its field, shape (operators,).

        >>> StridedReads(1.0, 8.0, 64.0, 16.0).nearest(np.array([8.0, 64.0, 512.0])).tolist()
        ['near_bytes_per_s', 'cached_bytes_per_s', 'bytes_per_s']
        """
        near = "cached_bytes_per_s" if self.near_bytes_per_s is None else "near_bytes_per_s"
        limit = math.sqrt(_APART)
        below = [cache_bytes < self.cached_bytes / limit, cache_bytes < self.cached_bytes * limit]
        return np.select(below, [near, "cached_bytes_per_s"], "bytes_per_s")

    def scaled(self, factor: float) -> StridedReads:
        """Returns the rates of strided reads multiplied by a factor; how much stays in the cache is unchanged."""
        near = None if self.near_bytes_per_s is None else self.near_bytes_per_s * factor
        return StridedReads(self.bytes_per_s * factor, self.cached_bytes_per_s * factor, self.cached_bytes, near)


@final
@dataclasses.dataclass(frozen=True)
class Device:
    """One accelerator, or one device's share of a CPU, with what it can do while all devices of its host compute.

    Attributes:
        name: for people.
        memory_bytes: the bytes of its memory that Alpa may use.
        flop_per_s: its rate of matrix products by dtype; "float32" must be given, and stands in for a dtype that isn't.
        vector_flop_per_s: operations per second of element-wise loops that stay in cache.
        memory_bytes_per_s: the bandwidth of its memory, reads and writes together.
        kernel_s: the seconds that starting one operator inside a compiled computation takes.
        dispatch_s: the seconds that starting one compiled computation takes (twice for each micro-batch and stage).
        step_s: the seconds that one training step takes a stage besides its computations.
        small_products: products that don't reach `flop_per_s`, and what others take to start; None: all reach it.
        dilated_flop_per_s: the rate of dilated convolutions (over images with holes); None: that of other products.
        extreme_flop_per_s: the elements per second of reductions to maxima or minima; None: as in other loops.
        strided: the rates of reads against the order in memory; None: such reads cost nothing extra.
        transcendental_flop: how many additions an exponential or tanh counts as: a polynomial and a division, and
            more where a compiler evaluates it again for each of its uses.
        uncached_bytes_per_s: the rate at which arrays are read and written that no cache holds from one use to the
            next: parameters, their gradients, and what one computation leaves for another; None: that of other arrays.
        crowding: the factor by which operators take longer in a stage of several devices, where these share a process.
        origin: where the figures are from.
        optional_rates: the names of the rates that may be None.
    """

    optional_rates: ClassVar[tuple[str, ...]] = ("dilated_flop_per_s", "extreme_flop_per_s", "uncached_bytes_per_s")

    name: str
    memory_bytes: float
    flop_per_s: Mapping[str, float] = dataclasses.field(hash=False)
    vector_flop_per_s: float
    memory_bytes_per_s: float
    kernel_s: float = 0.0
    dispatch_s: float = 0.0
    step_s: float = 0.0
    small_products: SmallProducts | None = None
    transcendental_flop: float = 16.0
    dilated_flop_per_s: float | None = None
    extreme_flop_per_s: float | None = None
    strided: StridedReads | None = None
    uncached_bytes_per_s: float | None = None
    crowding: float = 1.0
    origin: str = ""

    def __post_init__(self) -> None:
        owner = f"device {self.name}"
        rates = ("memory_bytes", "vector_flop_per_s", "memory_bytes_per_s", "transcendental_flop", "crowding")
        checks.fields(owner, self, " ".join((*rates, *self.optional_rates)), "kernel_s dispatch_s step_s")
        if "float32" not in self.flop_per_s:
            raise ValueError(f"{owner}: flop_per_s has {sorted(self.flop_per_s)}, but needs 'float32'")
        for dtype, rate in self.flop_per_s.items():
            checks.positive(owner, f"flop_per_s[{dtype!r}]", rate)

    @classmethod
    def of(cls, figures: Mapping[str, Any]) -> Device:
        """Returns the device that a file's mapping of attributes describes; `small_products` and `strided` are mappings
        in it, left out, or None.
        """
        parts: Mapping[str, Callable[..., Any]] = {"small_products": SmallProducts, "strided": StridedReads}
        built = {name: part(**figures[name]) for name, part in parts.items() if figures.get(name) is not None}
        return cls(**{**figures, **built})

    def rate(self, dtype: str) -> float:
        """Returns the device's operations per second of matrix products in a dtype, those of "float32" for an unknown
        one; "float8" stands for all formats of 8 bits.
        """
        name = "float8" if dtype.startswith("float8") else dtype
        return self.flop_per_s.get(name, self.flop_per_s["float32"])

    def slower(self, factor: float) -> Device:
        """Returns the device on which everything takes `factor` times as long: its rates are divided by the factor, its
        seconds multiplied.
        """
        rates = {name: getattr(self, name) for name in self.optional_rates}
        return dataclasses.replace(
            self,
            flop_per_s={dtype: rate / factor for dtype, rate in self.flop_per_s.items()},
            vector_flop_per_s=self.vector_flop_per_s / factor,
            memory_bytes_per_s=self.memory_bytes_per_s / factor,
            small_products=None if self.small_products is None else self.small_products.slower(factor),
            strided=None if self.strided is None else self.strided.scaled(1 / factor),
            kernel_s=self.kernel_s * factor,
            dispatch_s=self.dispatch_s * factor,
            step_s=self.step_s * factor,
            **{name: rate / factor for name, rate in rates.items() if rate is not None},
        )


@final
@dataclasses.dataclass(frozen=True)
class Host:
    """A machine of a cluster, with its devices.

    Attributes:
        name: for people, and in plans.
        device: the kind of its devices, which are all alike.
        num_devices: how many devices it has.
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
@dataclasses.dataclass(frozen=True, eq=False)
class LinkKinds:
    """The different links among H hosts, in the order in which the rows of `Cluster.links` first have them.

    Attributes:
        links: the different links.
        numbers: shape (H, H), the place among them of the link from each host to each other, or within it.
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
        name: for people.
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
        machine_file: the path of that type's file; empty: `alpa_dejavu.clusters` has it.
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
        """Returns a cluster of equal hosts; the link `within` joins the devices of one host, the link `between` any two
        hosts.
        """
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
        """Returns the cluster of a selection of its hosts, given by their indices and in that order, with the links
        between them.
        """
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
