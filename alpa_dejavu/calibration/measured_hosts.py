"""The measured memory of a kind of host: its bandwidth, the way to the devices, and drives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, final

from alpa_dejavu._util.dataclass_format import Needed, Rare, Stored
from alpa_dejavu._util.format_fields import GivenPositive, Index, Text, listed, stated
from alpa_dejavu.calibration.parts import Figures, Spread
from alpa_dejavu.problem import Cluster, HostMemory, Link, Nvme, checks

_RATES = ("bytes_per_s", "device_bytes_per_s", "shared_bytes_per_s", "read_bytes_per_s", "write_bytes_per_s")
_SIZES = ("num_bytes", "free_bytes")
_BESIDE = ("update", "copies", "reads", "writes")
_Figure: TypeAlias = Rare[GivenPositive | None]


@final
@dataclasses.dataclass(frozen=True)
class MeasuredHostMemory:
    """The measured memory of a kind of host, None what wasn't; ValueError for wrong figures, spreads or slowdowns."""

    num_bytes: _Figure = None  # the bytes of it that training may use
    bytes_per_s: _Figure = None  # its bandwidth, as Adam's update on the host's processors reaches it
    device_bytes_per_s: _Figure = None  # copies between it and one device, each way, while others copy nothing
    shared_bytes_per_s: _Figure = None  # the rate of such copies of all devices of the host together, each way
    read_bytes_per_s: _Figure = None  # `read_bytes_per_s`, `write_bytes_per_s`: of a large file, one at a time
    write_bytes_per_s: _Figure = None
    free_bytes: _Figure = None  # the bytes of the file's drives that training may use
    folder: Rare[Text] = ""  # the folder of that file; empty: the system's for temporary files
    # Whether the devices are parts of the host's processors, so that copies between two processes stood in for those
    # between the host and a device. Such devices have the host's memory already: there is nothing to be gained by
    # offloading, and no cluster gets these figures
    stand_in: Needed[Annotated[bool, stated("true (the devices are parts of the host's processors) or false")]] = False
    # Standard deviation of the logarithm of each measured rate, by its name above
    spread: Rare[Spread] = dataclasses.field(default_factory=dict, hash=False)
    # How many times as long each of two takes while the other goes on, at least 1: "update" and "copies" (to a device
    # and back), "reads" and "writes"
    slowdown: Rare[Figures] = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        checks.fields("measured host memory", self, " ".join((*_SIZES, *_RATES)))
        for name, value in self.spread.items():
            checks.one_of("measured host memory", "the spread", name, _RATES)
            checks.not_negative("measured host memory", f"the spread of {name}", value)
        for name, value in self.slowdown.items():
            checks.one_of("measured host memory", "the slowdown", name, _BESIDE)
            if not 1 <= value < float("inf"):
                raise ValueError(
                    f"measured host memory: slowdown[{name!r}] is {value!r}, but must be finite and at least 1; "
                    "measure anew"
                )

    def applied_to(self, before: HostMemory | None) -> HostMemory | None:
        """Returns a host's memory with measured rates, and its known sizes; None if a figure is lacking."""
        if self.stand_in:
            return before
        num_bytes = self.num_bytes if before is None else before.num_bytes
        rates: dict[str, Any] = {name: getattr(self, name) or getattr(before, name, None) for name in _RATES[:3]}
        if num_bytes is None or None in rates.values():
            return before
        drives = before and before.nvme
        free = drives.num_bytes if drives else self.free_bytes
        if free and self.read_bytes_per_s and self.write_bytes_per_s:
            drives = Nvme(free, self.read_bytes_per_s, self.write_bytes_per_s)
        return HostMemory(num_bytes, nvme=drives, **rates)


@final
@dataclasses.dataclass(frozen=True)
class HostLinks:
    """The measured links `links[a][b]` from host a to b, None where a is b, and the bytes per second of media that they
    share, by `Link.shares`. ValueError for a host that is there twice, or no row and column for each.
    """

    hosts: tuple[str, ...]
    links: tuple[tuple[Link | None, ...], ...]
    media: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        twice = next((name for name in self.hosts if self.hosts.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"host links: the host {twice!r} is there twice; measure the links anew")
        if len(self.links) != len(self.hosts) or any(len(row) != len(self.hosts) for row in self.links):
            raise ValueError(
                f"host links: there are {len(self.links)} rows of {[len(row) for row in self.links]} links, but "
                f"{len(self.hosts)} hosts need a row and a column each; measure the links anew"
            )
        for a, row in enumerate(self.links):
            for b, link in enumerate(row):
                if (link is None) != (a == b):
                    fault = "a link to itself" if a == b else f"no link to {self.hosts[b]!r}"
                    raise ValueError(f"host links: {self.hosts[a]!r} has {fault}; measure the links anew")

    def applied_to(self, cluster: Cluster, name: str) -> Cluster:
        """Returns the cluster, or a part, with the measured links; ValueError where a host wasn't measured, or its
        memory couldn't keep up. `name` is the calibration's.
        """
        unknown = [host.name for host in cluster.hosts if host.name not in self.hosts]
        if unknown:
            raise ValueError(
                f"the cluster {cluster.name} has the host {unknown[0]!r}, but the calibration {name} has links of "
                f"{', '.join(map(repr, self.hosts))} only; measure them anew with `alpa-dejavu calibrate --links`, or "
                "plan for the cluster that it was made on"
            )
        places = [self.hosts.index(host.name) for host in cluster.hosts]
        links = tuple(
            tuple(self.links[places[a]][places[b]] or own for b, own in enumerate(row))
            for a, row in enumerate(cluster.links)
        )
        applied = dataclasses.replace(cluster, links=links, media={**cluster.media, **self.media})
        applied.check_rates()
        return applied


_Row: TypeAlias = Annotated[
    tuple[Annotated[Index | None, stated("a whole number of at least 0, or null")], ...],
    listed("a list with the number of a kind for each host, and null for itself"),
]


@final
@dataclasses.dataclass(frozen=True)
class _KindsOfLinks:
    """The links between hosts in a file: each kind of link once, and which of them goes from host to host."""

    hosts: Annotated[tuple[Text, ...], listed("a list of the hosts' names", min_length=1)]
    kinds: Annotated[
        tuple[Annotated[Link, stated("an object with the figures of a link")], ...], listed("a list of links")
    ]
    links: Annotated[tuple[_Row, ...], listed("a list with a row for each host")]
    media: Annotated[
        Mapping[str, GivenPositive], stated("an object of bytes per second by the names of what links share")
    ] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        wrong = sorted({n for row in self.links for n in row if n is not None and n >= len(self.kinds)})
        if wrong:
            raise ValueError(f"host_links.links names the kind {wrong[0]}, but there are {len(self.kinds)}")


def _as_kinds(measured: HostLinks) -> _KindsOfLinks:
    kinds = tuple(dict.fromkeys(link for row in measured.links for link in row if link is not None))
    rows = tuple(tuple(None if link is None else kinds.index(link) for link in row) for row in measured.links)
    return _KindsOfLinks(measured.hosts, kinds, rows, measured.media)


def _of_kinds(stored: _KindsOfLinks) -> HostLinks:
    rows = tuple(tuple(None if n is None else stored.kinds[n] for n in row) for row in stored.links)
    return HostLinks(stored.hosts, rows, stored.media)


KINDS_OF_LINKS = Stored(_KindsOfLinks, _as_kinds, _of_kinds)
