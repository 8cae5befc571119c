"""Workers and links that change while a simulation runs."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import TYPE_CHECKING, final

from alpa_dejavu.playground._worker import Program, Sleeping
from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from alpa_dejavu.playground._world import World

__all__ = ["FAULTS", "Crash", "Fault", "LinkRate", "SlowDown"]


class Fault(abc.ABC):
    """A change of workers or links, as a program beside those of the workers."""

    @abc.abstractmethod
    def run(self, world: World) -> Program:
        """Changes the world (`crash`, `start`, `slow`, `scale_link`), and yields `Sleeping` between; it begins at
        second 0, before all workers.
        """


@final
@dataclasses.dataclass(frozen=True)
class Crash(Fault):
    """A worker that is lost at a time, with all that it holds and what is on its way to it or from it.

    Attributes:
        worker: its number.
        at_s: when it is lost.
        back_s: when it begins anew, with the parameters of the beginning; None: never.
    """

    worker: int
    at_s: float
    back_s: float | None = None

    def __post_init__(self) -> None:
        checks.not_negative("crash", "at_s", self.at_s)
        if self.back_s is not None and not self.back_s > self.at_s:
            raise ValueError(f"crash: back_s is {self.back_s}, but must be after at_s, {self.at_s}; give a later time")

    def run(self, world: World) -> Program:
        """Takes the worker away, and brings it back."""
        _check(world, self.worker)
        if self.at_s:
            yield Sleeping(self.at_s)
        world.crash(self.worker)
        if self.back_s is not None:
            yield Sleeping(self.back_s - self.at_s)
            world.start(self.worker)


@final
@dataclasses.dataclass(frozen=True)
class SlowDown(Fault):
    """A worker whose gradients take longer for a while.

    Attributes:
        worker: its number.
        factor: how many times as long they take; those that are under way already aren't changed.
        at_s, until_s: from when until when.
    """

    worker: int
    factor: float
    at_s: float = 0.0
    until_s: float = math.inf

    def __post_init__(self) -> None:
        checks.positive("slow-down", "factor", self.factor)
        checks.not_negative("slow-down", "at_s", self.at_s)

    def run(self, world: World) -> Program:
        """Slows the worker down, and has it recover."""
        _check(world, self.worker)
        if self.at_s:
            yield Sleeping(self.at_s)
        world.slow(self.worker, self.factor)
        if self.until_s < math.inf:
            yield Sleeping(self.until_s - self.at_s)
            world.slow(self.worker, 1.0)


@final
@dataclasses.dataclass(frozen=True)
class LinkRate(Fault):
    """A link between two hosts, or the ports within one, that has another rate for a while: congested, or cut.

    Attributes:
        hosts: indices of both hosts.
        factor: the share of its own rate that it has; at 0 what is under way waits.
        at_s, until_s: from when until when.
    """

    hosts: tuple[int, int]
    factor: float
    at_s: float = 0.0
    until_s: float = math.inf

    def __post_init__(self) -> None:
        checks.not_negative("link rate", "factor", self.factor)
        checks.not_negative("link rate", "at_s", self.at_s)

    def run(self, world: World) -> Program:
        """Changes the link's rate, and has it recover."""
        known = max(world.hosts) + 1
        if not all(0 <= host < known for host in self.hosts):
            raise ValueError(f"fault: hosts is {self.hosts}, but must be of 0..{known - 1}; name hosts with workers")
        if self.at_s:
            yield Sleeping(self.at_s)
        world.scale_link(*self.hosts, self.factor)
        if self.until_s < math.inf:
            yield Sleeping(self.until_s - self.at_s)
            world.scale_link(*self.hosts, 1.0)


FAULTS: dict[str, type[Fault]] = {"crash": Crash, "slow-down": SlowDown, "link-rate": LinkRate}
"""For each word of a scenario its fault."""


def _check(world: World, worker: int) -> None:
    if not 0 <= worker < world.size:
        raise ValueError(f"fault: worker is {worker}, but must be one of 0..{world.size - 1}; name a worker of the job")
