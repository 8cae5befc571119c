"""Faults at random times: the seconds until each, and those that it lasts, are exponential."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable
from typing import TypeVar, final

from alpa_dejavu.playground._fault import Changed, Fault
from alpa_dejavu.playground._queue import Sleeping
from alpa_dejavu.playground._world import Program
from alpa_dejavu.problem import checks

__all__ = ["DrawnCongestion", "DrawnCrashes", "DrawnSlowDowns"]

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
