"""The probes that can be measured on a cluster, and the interface of what measures them."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TypeAlias, final

from alpa_dejavu._util import units
from alpa_dejavu.calibration.operators import Program
from alpa_dejavu.costs.communication import MEASURED

__all__ = ["BETWEEN", "WITHIN", "Bench", "Collective", "Flows", "MeasurementError", "Pipeline", "Place", "Probe"]

WITHIN, BETWEEN = "within a host", "between two hosts"
"""The kinds of links."""


class MeasurementError(RuntimeError):
    """An error that says why one measurement failed; others may work."""


@final
@dataclasses.dataclass(frozen=True, order=True)
class Collective:
    """A probe that runs a collective in several equal groups of devices at the same time.

    Attributes:
        name: "all_reduce", "all_gather", "reduce_scatter" or "all_to_all".
        num_bytes: the bytes of the tensor, as `CommunicationModel.seconds` counts them.
        size: how many devices a group has.
        concurrent: how many groups run it at the same time.
        across: whether each group has half of its devices on each of two hosts; else all are on one host.
    """

    name: str
    num_bytes: int
    size: int
    concurrent: int
    across: bool

    def __post_init__(self) -> None:
        if self.name not in MEASURED or self.num_bytes < 1 or self.size < 2 or self.concurrent < 1:
            raise ValueError(f"there is no collective {dataclasses.astuple(self)}; measure anew")

    def __str__(self) -> str:
        return f"{self.name} of {units.exact_bytes(self.num_bytes)}, {self.concurrent} x {self.size}"


@final
@dataclasses.dataclass(frozen=True, order=True)
class Pipeline:
    """A probe that runs a pipeline of two stages, which compute next to nothing and pass on a tensor of some bytes."""

    num_bytes: int

    def __post_init__(self) -> None:
        if self.num_bytes < 1:
            raise ValueError(f"a pipeline passes on {units.exact_bytes(self.num_bytes)}; measure anew")

    def __str__(self) -> str:
        return f"pipeline with {units.exact_bytes(self.num_bytes)}"


@final
@dataclasses.dataclass(frozen=True, order=True)
class Flows:
    """A probe that sends messages of `num_bytes` bytes at the same time; `pairs` has the indices of the hosts that each
    message goes from and to.
    """

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


Probe: TypeAlias = Program | Collective | Pipeline | Flows


@final
@dataclasses.dataclass(frozen=True, order=True)
class Place:
    """A place of a cluster where probes of one kind are measured: a kind of device, or links within a host or between
    two.

    Attributes:
        what: "programs", "collectives", "pipelines" or "links".
        where: a device's name for programs, `WITHIN` or `BETWEEN` for the others.
    """

    what: str
    where: str

    def __str__(self) -> str:
        return f"programs on {self.where}" if self.what == "programs" else f"{self.what} {self.where}"


class Bench(abc.ABC):
    """The interface of a bench, which measures probes by workers on a cluster."""

    @abc.abstractmethod
    def open(self, place: Place) -> AbstractContextManager[Callable[[Probe], Mapping[str, float]]]:
        """Starts the workers that the probes of a place need, for as long as a `with` block runs, and yields a function
        that measures a probe.

        The function takes a probe and returns seconds by name: "run_s" of a program or collective; "dispatch_s",
        "step_s" and "send_s" of a pipeline; for messages between hosts those of each, by `Flows.names`. It raises
        MeasurementError where one probe can't be measured, though others may.
        """
