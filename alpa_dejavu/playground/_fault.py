"""The interface of faults, and what they have in common."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from alpa_dejavu.playground._worker import Program, Sleeping
from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from alpa_dejavu.playground._gradient import Vector
    from alpa_dejavu.playground._worker import Worker
    from alpa_dejavu.playground._wrong_stage import WrongStage

__all__ = ["Changed", "Fault", "change", "check_hosts", "check_times", "check_worker", "for_a_while",
           "scaled"]  # fmt: skip


class Changed(Protocol):
    """The workers and links that faults change: simulated ones, or real ones."""

    size: int
    hosts: tuple[int, ...]
    now_s: float
    ends_s: float

    def fault_generator(self) -> np.random.Generator:
        """Returns random numbers that nobody else has, for a fault."""

    def spawn(self, worker: Worker | None, program: Program) -> object:
        """Starts another program of a fault, with None for the worker."""

    def crash(self, number: int) -> bool:
        """Takes a worker away; returns whether it was there."""

    def start(self, number: int) -> None:
        """Brings a worker back that was lost, or a new one, with the parameters of the beginning."""

    def slow(self, number: int, factor: float, ends: bool = False) -> None:
        """Has a worker take `factor` times as long, beside other slow-downs; or ends such a slow-down."""

    def spoil(self, number: int, change: Callable[[int, int, Vector], Vector] | None) -> None:
        """Has a worker's gradients that it begins from now on be changed, by a function of its number, its step and the
        right gradient; None: no more.
        """

    def compute_wrongly(self, number: int, fault: WrongStage | None) -> None:
        """Has a worker compute a stage wrongly in gradients that it begins from now on; None: no more."""

    def scale_link(self, a: int, b: int, factor: float, ends: bool = False) -> None:
        """Gives the link between two hosts a factor of its rate, 0 to cut it, beside other factors; or ends that."""


class Fault(abc.ABC):
    """A change of workers or links, as a program beside those of the workers.

    Several faults may meet: factors multiply, and a worker that is lost already isn't lost again.
    """

    @abc.abstractmethod
    def run(self, world: Changed) -> Program:
        """Returns a program that changes the world (`crash`, `start`, `slow`, `spoil`, `compute_wrongly`,
        `scale_link`), and yields `Sleeping` between; what it does at second 0 happens before all workers begin.

        Raises:
            ValueError: there is no such worker or host; it is called before the simulation begins.
        """


def scaled(world: Changed, links: Sequence[tuple[int, int]], factor: float, at_s: float, until_s: float) -> Program:
    """Gives links between two hosts each a factor of their rates for a while."""
    def scale(ends: bool) -> None:
        for link in links:
            world.scale_link(*link, factor, ends=ends)

    return for_a_while(scale, at_s, until_s)


def for_a_while(change: Callable[[bool], object], at_s: float, until_s: float) -> Program:
    """Makes a change at a time by a call with False, and ends it at another by a call with True, or never."""
    if at_s:
        yield Sleeping(at_s)
    change(False)
    if until_s < math.inf:
        yield Sleeping(until_s - at_s)
        change(True)


def check_times(owner: str, at_s: float, end_s: float | None, field: str = "until_s") -> None:
    """Raises ValueError unless a fault begins at a time, and ends later or never."""
    checks.not_negative(owner, "at_s", at_s)
    if end_s is not None and not end_s > at_s:
        raise ValueError(f"{owner}: {field} is {end_s}, but must be after at_s, {at_s}; give a later time")


def check_worker(world: Changed, worker: int) -> None:
    """Raises ValueError unless there is a worker of a number."""
    if worker not in range(world.size):
        raise ValueError(f"fault: worker is {worker}, but must be one of 0..{world.size - 1}; name a worker of the job")


def check_hosts(world: Changed, hosts: tuple[int, ...]) -> None:
    """Raises ValueError unless there may be workers on hosts."""
    known = max(world.hosts) + 1
    if not all(host in range(known) for host in hosts):
        raise ValueError(f"fault: hosts is {hosts}, but must be of 0..{known - 1}; name hosts with workers")


def change(factors: list[float], factor: float, ends: bool) -> None:
    """Adds a factor to those that hold now, or takes it away."""
    if ends:
        factors.remove(factor)
    else:
        factors.append(factor)
