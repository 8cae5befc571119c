"""Faults at random times: the seconds until each, and those that it lasts, are exponential."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable
from typing import TypeVar, final

from alpa_dejavu.playground._fault import Changed, Fault
from alpa_dejavu.playground._worker import Program, Sleeping
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
        """Draws for each worker."""
        def lost(worker: int, share: float) -> Program:
            if world.crash(worker):
                yield Sleeping(math.inf if self.back_after_s is None else share * self.back_after_s)
                world.start(worker)

        return _drawn(world, "drawn crashes", self.per_s, self.until_s, range(world.size), lost)


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
        """Draws for each worker."""
        def slowed(worker: int, share: float) -> Program:
            world.slow(worker, self.factor)
            yield Sleeping(share * self.for_s)
            world.slow(worker, self.factor, ends=True)

        return _drawn(world, "drawn slow-downs", self.per_s, self.until_s, range(world.size), slowed)


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
        """Draws for each pair of hosts that have workers."""
        def congested(link: tuple[int, int], share: float) -> Program:
            world.scale_link(*link, self.factor)
            yield Sleeping(share * self.for_s)
            world.scale_link(*link, self.factor, ends=True)

        links = itertools.combinations(sorted(set(world.hosts)), 2)
        return _drawn(world, "drawn congestion", self.per_s, self.until_s, links, congested)


def _drawn(world: Changed, owner: str, per_s: float, until_s: float, things: Iterable[T],
           happens: Callable[[T, float], Program]) -> Program:  # fmt: skip
    """Returns the program of a fault that draws for each of some things; it happens with an exponential number of mean
    1 by which the seconds that it lasts are multiplied.
    """
    last_s = min(until_s, world.ends_s)
    if per_s and last_s == math.inf:
        raise ValueError(f"{owner}: until_s is inf, but must be finite where Until.seconds is inf; give either: "
                         "what stalls would never end")  # fmt: skip

    def one(thing: T) -> Program:
        generator = world.fault_generator()
        while True:
            yield Sleeping(generator.exponential(1 / per_s))
            if world.now_s > last_s:
                return
            yield from happens(thing, generator.exponential())

    def every() -> Program:
        for thing in things if per_s else ():
            world.spawn(None, one(thing))
        yield from ()

    return every()
