"""Workers and links that change while a simulation runs, at given times or at drawn ones."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, final

from alpa_dejavu.playground._fault import Fault, WrongGradient, WrongStage, check_times, check_worker, for_a_while
from alpa_dejavu.playground._queue import Sleeping
from alpa_dejavu.playground._virtual_world import VirtualWorld
from alpa_dejavu.playground._world import Program
from alpa_dejavu.problem import checks

__all__ = [
    "FAULTS", "Crash", "DrawnCongestion", "DrawnCrashes", "DrawnSlowDowns", "Fault", "Join", "LinkRate", "Partition",
    "SlowDown", "WrongGradient", "WrongStage",
]  # fmt: skip

T = TypeVar("T")


@final
@dataclasses.dataclass(frozen=True)
class Crash(Fault):
    """A worker that is lost at a time, with all that it holds and what is on its way to it or from it. At `back_s` it
    begins anew, with the parameters of the beginning; None: never.
    """

    worker: int
    at_s: float
    back_s: float | None = None

    def __post_init__(self) -> None:
        check_times("crash", self.at_s, self.back_s, "back_s")

    def run(self, world: VirtualWorld) -> Program:
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
    """A worker that isn't there at the beginning. At a time it begins, with the parameters of the beginning."""

    worker: int
    at_s: float

    def __post_init__(self) -> None:
        checks.positive("join", "at_s", self.at_s)

    def run(self, world: VirtualWorld) -> Program:
        return Crash(self.worker, 0.0, self.at_s).run(world)


@final
@dataclasses.dataclass(frozen=True)
class SlowDown(Fault):
    """A worker whose gradients take `factor` times as long for a while; those under way aren't changed."""

    worker: int
    factor: float
    at_s: float = 0.0
    until_s: float = math.inf

    def __post_init__(self) -> None:
        checks.positive("slow-down", "factor", self.factor)
        check_times("slow-down", self.at_s, self.until_s)

    def run(self, world: VirtualWorld) -> Program:
        check_worker(world, self.worker)
        return for_a_while(lambda ends: world.slow(self.worker, self.factor, ends=ends), self.at_s, self.until_s)


@final
@dataclasses.dataclass(frozen=True)
class LinkRate(Fault):
    """A link between two hosts, or the ports within one, that has another rate for a while: congested, or cut. The
    factor is the share of its own rate that it has; at 0 what is under way waits.
    """

    hosts: tuple[int, int]
    factor: float
    at_s: float = 0.0
    until_s: float = math.inf

    def __post_init__(self) -> None:
        checks.not_negative("link rate", "factor", self.factor)
        check_times("link rate", self.at_s, self.until_s)

    def run(self, world: VirtualWorld) -> Program:
        return _scaled(world, self.hosts, [self.hosts], self.factor, self.at_s, self.until_s)


@final
@dataclasses.dataclass(frozen=True)
class Partition(Fault):
    """Groups of hosts that don't reach each other for a while.

    Messages between them wait, and aren't lost: exchanges send over reliable transports (TCP, or connections of RDMA),
    which send again. Bytes that had passed before still arrive. Each exchange decides by a timeout of its own when to
    give up.

    Attributes:
        groups: indices of the hosts of each group; hosts in none of them reach all.
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

    def run(self, world: VirtualWorld) -> Program:
        pairs = itertools.combinations(self.groups, 2)
        links = [link for group, other in pairs for link in itertools.product(group, other)]
        return _scaled(world, sum(self.groups, ()), links, 0.0, self.at_s, self.until_s)


def _scaled(world: VirtualWorld, hosts: tuple[int, ...], links: Sequence[tuple[int, int]], factor: float, at_s: float,
            until_s: float) -> Program:  # fmt: skip
    """Gives links between some of the hosts each a factor of their rates for a while."""
    count = max(world.hosts) + 1
    if not all(host in range(count) for host in hosts):
        raise ValueError(f"fault: hosts is {hosts}, but must be of 0..{count - 1}; name hosts with workers")

    def scale(ends: bool) -> None:
        for link in links:
            world.scale_link(*link, factor, ends=ends)

    return for_a_while(scale, at_s, until_s)


@final
@dataclasses.dataclass(frozen=True)
class DrawnCrashes(Fault):
    """Workers that are lost at random, each on its own.

    Attributes:
        per_s: how often a worker that is there is lost in a second, on average, until `until_s`.
        back_after_s: the mean of the seconds until a lost worker begins anew; None: it never does.
    """

    per_s: float
    back_after_s: float | None = None
    until_s: float = math.inf

    def __post_init__(self) -> None:
        checks.fields("drawn crashes", self, "back_after_s", "per_s")

    def run(self, world: VirtualWorld) -> Program:
        def lose(worker: int, ends: bool) -> bool:
            if ends:
                world.start(worker)
            return ends or world.crash(worker)

        back_after_s = math.inf if self.back_after_s is None else self.back_after_s
        return _at_random_times(world, "drawn crashes", self.per_s, self.until_s, back_after_s, range(world.size), lose)


@dataclasses.dataclass(frozen=True)
class _DrawnFactor(Fault):
    """Workers or links that have a factor for a while at random, each on its own.

    Attributes:
        per_s: how often one that has its own speed gets the factor in a second, on average.
        factor: how many times as long a worker's gradients take, or the share of its own rate that a link has.
        for_s: the mean of the seconds for which it has that.
        until_s: until when factors begin.
    """

    per_s: float
    factor: float
    for_s: float
    until_s: float = math.inf


@final
@dataclasses.dataclass(frozen=True)
class DrawnSlowDowns(_DrawnFactor):
    """Workers whose gradients take longer for a while at random, each on its own."""

    def __post_init__(self) -> None:
        checks.fields("drawn slow-downs", self, "factor for_s", "per_s")

    def run(self, world: VirtualWorld) -> Program:
        return _at_random_times(world, "drawn slow-downs", self.per_s, self.until_s, self.for_s, range(world.size),
                                lambda worker, ends: world.slow(worker, self.factor, ends))  # fmt: skip


@final
@dataclasses.dataclass(frozen=True)
class DrawnCongestion(_DrawnFactor):
    """Links between two hosts that have a share of their rates for a while at random, each on its own."""

    def __post_init__(self) -> None:
        checks.fields("drawn congestion", self, "for_s", "per_s factor")

    def run(self, world: VirtualWorld) -> Program:
        links = itertools.combinations(sorted(set(world.hosts)), 2)
        return _at_random_times(world, "drawn congestion", self.per_s, self.until_s, self.for_s, links,
                                lambda link, ends: world.scale_link(*link, self.factor, ends))  # fmt: skip


def _at_random_times(world: VirtualWorld, owner: str, per_s: float, until_s: float, for_s: float, things: Iterable[T],
                     change: Callable[[T, bool], bool | None]) -> Program:  # fmt: skip
    """The program of a fault that draws for each thing; `change` begins it, if not False, or (True) ends it."""
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

    def start_each() -> Program:
        for thing in things if per_s else ():
            world.spawn(None, repeated(thing))
        yield from ()

    return start_each()


FAULTS: dict[str, type[Fault]] = {
    "crash": Crash, "join": Join, "slow-down": SlowDown, "link-rate": LinkRate, "partition": Partition,
    "wrong-gradient": WrongGradient, "wrong-stage": WrongStage, "drawn-crashes": DrawnCrashes,
    "drawn-slow-downs": DrawnSlowDowns, "drawn-congestion": DrawnCongestion,
}  # fmt: skip
"""For each word of a scenario the fault, a frozen dataclass."""
