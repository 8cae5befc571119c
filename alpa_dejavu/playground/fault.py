"""Workers and links that change while a simulation runs, at given times or at drawn ones."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable
from typing import TypeVar, final

from alpa_dejavu.playground._fault import (
    Changed,
    Fault,
    WrongGradient,
    WrongStage,
    check_hosts,
    check_times,
    check_worker,
    for_a_while,
    scaled,
)
from alpa_dejavu.playground._queue import Sleeping
from alpa_dejavu.playground._world import Program
from alpa_dejavu.problem import checks

__all__ = [
    "FAULTS",
    "Crash",
    "DrawnCongestion",
    "DrawnCrashes",
    "DrawnSlowDowns",
    "Fault",
    "Join",
    "LinkRate",
    "Partition",
    "SlowDown",
    "WrongGradient",
    "WrongStage",
]


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
        check_times("crash", self.at_s, self.back_s, "back_s")

    def run(self, world: Changed) -> Program:
        """Takes the worker away, and brings it back."""
        check_worker(world, self.worker)

        def lose() -> Program:
            if self.at_s:
                yield Sleeping(self.at_s)
            if world.crash(self.worker) and self.back_s is not None:
                yield Sleeping(self.back_s - self.at_s)
                world.start(self.worker)

        return lose()


@final
@dataclasses.dataclass(frozen=True)
class Join(Fault):
    """A worker that isn't there at the beginning.

    Attributes:
        worker: its number; it is one of the job's workers.
        at_s: when it begins, with the parameters of the beginning.
    """

    worker: int
    at_s: float

    def __post_init__(self) -> None:
        checks.positive("join", "at_s", self.at_s)

    def run(self, world: Changed) -> Program:
        """Keeps the worker away until its time."""
        return Crash(self.worker, 0.0, self.at_s).run(world)


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
        check_times("slow-down", self.at_s, self.until_s)

    def run(self, world: Changed) -> Program:
        """Slows the worker down, and has it recover."""
        check_worker(world, self.worker)
        return for_a_while(lambda ends: world.slow(self.worker, self.factor, ends=ends), self.at_s, self.until_s)


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
        check_times("link rate", self.at_s, self.until_s)

    def run(self, world: Changed) -> Program:
        """Changes the link's rate, and has it recover."""
        check_hosts(world, self.hosts)
        return scaled(world, (self.hosts,), self.factor, self.at_s, self.until_s)


@final
@dataclasses.dataclass(frozen=True)
class Partition(Fault):
    """Groups of hosts that don't reach each other for a while.

    Messages between them wait, and aren't lost: exchanges send over reliable transports (TCP, or connections of RDMA),
    which send again. Bytes that had passed before still arrive. Each exchange decides by a timeout of its own when to
    give up.

    Attributes:
        groups: indices of the hosts of each group; hosts in none of them reach all.
        at_s, until_s: from when until when.
    """

    groups: tuple[tuple[int, ...], ...]
    at_s: float = 0.0
    until_s: float = math.inf

    def __post_init__(self) -> None:
        check_times("partition", self.at_s, self.until_s)
        every = [host for group in self.groups for host in group]
        if len(self.groups) < 2 or len(set(every)) < len(every) or not all(self.groups):
            raise ValueError(f"partition: groups is {self.groups}, but must be two or more without a common host; name "
                             "each host once")  # fmt: skip

    def run(self, world: Changed) -> Program:
        """Cuts all links between the groups, and mends them."""
        check_hosts(world, tuple(host for group in self.groups for host in group))
        links = tuple((a, b) for group, other in itertools.combinations(self.groups, 2) for a in group for b in other)
        return scaled(world, links, 0.0, self.at_s, self.until_s)


T = TypeVar("T")


@final
@dataclasses.dataclass(frozen=True)
class DrawnCrashes(Fault):
    """Workers that are lost at random, each on its own.

    Attributes:
        per_s: how often a worker that is there is lost in a second, on average.
        back_after_s: the mean of the seconds until a lost worker begins anew; None: it never does.
        until_s: until when workers are lost.
    """

    per_s: float
    back_after_s: float | None = None
    until_s: float = math.inf

    def __post_init__(self) -> None:
        checks.not_negative("drawn crashes", "per_s", self.per_s)
        checks.positive("drawn crashes", "back_after_s", 1.0 if self.back_after_s is None else self.back_after_s)

    def run(self, world: Changed) -> Program:
        """Loses workers, and brings them back."""

        def lose(worker: int, ends: bool) -> bool:
            if ends:
                world.start(worker)
            return ends or world.crash(worker)

        back_after_s = math.inf if self.back_after_s is None else self.back_after_s
        return _drawn(world, "drawn crashes", self.per_s, self.until_s, back_after_s, range(world.size), lose)


@final
@dataclasses.dataclass(frozen=True)
class DrawnSlowDowns(Fault):
    """Workers whose gradients take longer for a while at random, each on its own.

    Attributes:
        per_s: how often a worker that isn't slow is slowed down in a second, on average.
        factor: how many times as long its gradients take.
        for_s: the mean of the seconds for which it is slow.
        until_s: until when workers are slowed down.
    """

    per_s: float
    factor: float
    for_s: float
    until_s: float = math.inf

    def __post_init__(self) -> None:
        checks.not_negative("drawn slow-downs", "per_s", self.per_s)
        checks.positive("drawn slow-downs", "factor", self.factor)
        checks.positive("drawn slow-downs", "for_s", self.for_s)

    def run(self, world: Changed) -> Program:
        """Slows workers down, and has them recover."""
        return _drawn(world, "drawn slow-downs", self.per_s, self.until_s, self.for_s, range(world.size),
                      lambda worker, ends: world.slow(worker, self.factor, ends))  # fmt: skip


@final
@dataclasses.dataclass(frozen=True)
class DrawnCongestion(Fault):
    """Links between two hosts that have a share of their rates for a while at random, each on its own.

    Attributes:
        per_s: how often a link that isn't congested becomes so in a second, on average.
        factor: the share of its own rate that it then has.
        for_s: the mean of the seconds for which it is congested.
        until_s: until when links become congested.
    """

    per_s: float
    factor: float
    for_s: float
    until_s: float = math.inf

    def __post_init__(self) -> None:
        checks.not_negative("drawn congestion", "per_s", self.per_s)
        checks.not_negative("drawn congestion", "factor", self.factor)
        checks.positive("drawn congestion", "for_s", self.for_s)

    def run(self, world: Changed) -> Program:
        """Changes links' rates, and has them recover."""
        links = itertools.combinations(sorted(set(world.hosts)), 2)
        return _drawn(world, "drawn congestion", self.per_s, self.until_s, self.for_s, links,
                      lambda link, ends: world.scale_link(*link, self.factor, ends))  # fmt: skip


def _drawn(world: Changed, owner: str, per_s: float, until_s: float, for_s: float, things: Iterable[T],
           change: Callable[[T, bool], bool | None]) -> Program:  # fmt: skip
    """Returns the program of a fault that draws for each of some things; `change` begins it, unless it returns False,
    and ends it where it is called with True.
    """
    last_s = min(until_s, world.ends_s)
    if per_s and last_s == math.inf:
        raise ValueError(f"{owner}: until_s is inf, but must be finite where Until.seconds is inf; give either: "
                         "what stalls would never end")  # fmt: skip

    def repeated(thing: T) -> Program:
        generator = world.fault_generator()
        while True:
            yield Sleeping(generator.exponential(1 / per_s))
            if world.now_s > last_s:
                return
            lasts_s = generator.exponential() * for_s
            if change(thing, False) is not False:
                yield Sleeping(lasts_s)
                change(thing, True)

    def every() -> Program:
        for thing in things if per_s else ():
            world.spawn(None, repeated(thing))
        yield from ()

    return every()


FAULTS: dict[str, type[Fault]] = {
    "crash": Crash,
    "join": Join,
    "slow-down": SlowDown,
    "link-rate": LinkRate,
    "partition": Partition,
    "wrong-gradient": WrongGradient,
    "wrong-stage": WrongStage,
    "drawn-crashes": DrawnCrashes,
    "drawn-slow-downs": DrawnSlowDowns,
    "drawn-congestion": DrawnCongestion,
}
"""For each word of a scenario the fault, a frozen dataclass."""
