"""The probes that can be measured on a cluster, and the interface of what measures them."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import ClassVar, TypeAlias, final

from alpa_dejavu._util import units
from alpa_dejavu.costs.communication import MEASURED

WITHIN, BETWEEN = "within a host", "between two hosts"
"""The kinds of links."""
HOST_MEMORY = "host memory"
_HOST_FIGURES: Mapping[str, tuple[str, ...]] = {
    "memory": ("num_bytes",),
    "update": ("update_s",),
    "copies": ("to_device_s", "to_host_s"),
    "update beside copies": ("update_s", "copy_s"),
    "files": ("write_s", "read_s", "write_beside_s", "read_beside_s", "free_bytes"),
}
"""The figures that each probe of a host's memory finds."""


class MeasurementError(RuntimeError):
    """An error that says why one measurement failed; others may work."""


@final
@dataclasses.dataclass(frozen=True, order=True)
class CollectiveProbe:
    """A probe that runs a collective in several equal groups of devices at the same time."""

    names: ClassVar[tuple[str, ...]] = ("run_s",)
    name: str  # "all_reduce", "all_gather", "reduce_scatter" or "all_to_all"
    num_bytes: int  # the bytes of the tensor, as `CommunicationModel.seconds` counts them
    size: int  # how many devices a group has
    concurrent: int  # how many groups run it at the same time
    across: bool  # whether each group has half of its devices on each of two hosts; else all are on one host

    def __post_init__(self) -> None:
        if self.name not in MEASURED or self.num_bytes < 1 or self.size < 2 or self.concurrent < 1:
            raise ValueError(f"there is no collective {dataclasses.astuple(self)}; measure anew")

    def __str__(self) -> str:
        return f"{self.name} of {units.exact_bytes(self.num_bytes)}, {self.concurrent} x {self.size}"


@final
@dataclasses.dataclass(frozen=True, order=True)
class PipelineProbe:
    """A probe that runs a pipeline of two stages, which compute next to nothing and pass on a tensor of some bytes."""

    names: ClassVar[tuple[str, ...]] = ("dispatch_s", "step_s", "send_s")
    num_bytes: int

    def __post_init__(self) -> None:
        if self.num_bytes < 1:
            raise ValueError(f"a pipeline passes on {units.exact_bytes(self.num_bytes)}; measure anew")

    def __str__(self) -> str:
        return f"pipeline with {units.exact_bytes(self.num_bytes)}"


@final
@dataclasses.dataclass(frozen=True, order=True)
class Flows:
    """A probe that sends messages of some bytes at a time, each from one host to another (`pairs` of indices)."""

    pairs: tuple[tuple[int, int], ...]
    num_bytes: int

    def __post_init__(self) -> None:
        pairs = tuple((a, b) for a, b in self.pairs)
        object.__setattr__(self, "pairs", pairs)
        whole = all(isinstance(end, int) and end >= 0 for pair in pairs for end in pair)
        if not pairs or not whole or len(set(pairs)) < len(pairs) or any(a == b for a, b in pairs):
            raise ValueError(f"messages go from {pairs}, which aren't pairs of hosts; measure anew")
        if self.num_bytes < 1:
            raise ValueError(f"messages have {units.exact_bytes(self.num_bytes)}; measure anew")

    def __str__(self) -> str:
        return f"{len(self.pairs)} x {units.exact_bytes(self.num_bytes)}"

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the name of each message, such as "0-1" for hosts 0 and 1, by which its measured seconds are kept."""
        return tuple(f"{a}-{b}" for a, b in self.pairs)


@final
@dataclasses.dataclass(frozen=True, order=True)
class HostProbe:
    """A probe of a host's own memory, of the way from there to its devices, or of its drives."""

    # "memory" (how much there is), "update" (Adam on the host's processors), "copies" (to devices and back), "update
    # beside copies", or "files" (written, read, and both at a time)
    name: str
    num_bytes: int = 1  # of the updated parameters, in float32; of the array that each device gets; of the file
    num_devices: int = 1  # how many devices copy at a time
    folder: str = ""  # the folder of the file; empty: the system's for temporary files

    def __post_init__(self) -> None:
        if self.name not in _HOST_FIGURES or min(self.num_bytes, self.num_devices) < 1:
            raise ValueError(f"there is no probe of a host's memory {dataclasses.astuple(self)}; measure anew")

    def __str__(self) -> str:
        if self.name == "memory":
            return self.name
        devices = f", {self.num_devices} devices" if self.num_devices > 1 else ""
        folder = f" in {self.folder}" if self.folder else ""
        return f"{self.name} of {units.exact_bytes(self.num_bytes)}{devices}{folder}"

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of what it finds, in seconds or bytes ("copy_s" is a copy to the device and back)."""
        return _HOST_FIGURES[self.name]


Probe: TypeAlias = CollectiveProbe | PipelineProbe | Flows | HostProbe


@final
@dataclasses.dataclass(frozen=True, order=True)
class ProbePlace:
    """A place where probes of a kind are measured: "collectives" and "pipelines" `WITHIN` a host or `BETWEEN` two,
    "links" between hosts, or `HOST_MEMORY` on hosts with a device of that name.
    """

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.what}{' of hosts with' if self.what == HOST_MEMORY else ''} {self.where}"


class ProbeBench(abc.ABC):
    """The interface of a bench, which measures probes by workers on a cluster."""

    @abc.abstractmethod
    def open(self, place: ProbePlace) -> AbstractContextManager[Callable[[Probe], Mapping[str, float]]]:
        """Starts the workers that a place's probes need, for a `with` block, and yields a function that measures a
        probe: seconds, of a host's memory also bytes, by the probe's `names`; MeasurementError where one can't be
        measured.
        """
