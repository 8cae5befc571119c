"""Faults of real workers: processes are killed, quotas and links' rates change, at times of the clock on the wall."""

from __future__ import annotations

import collections
import math
import os
import signal
from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from alpa_dejavu.playground._draws import draws
from alpa_dejavu.playground._fault import Fault, WrongStage, change
from alpa_dejavu.playground._gradient import Vector
from alpa_dejavu.playground._queue import Process, Queue, Sleeping
from alpa_dejavu.playground._world import Program, Worker
from alpa_dejavu.playground.hosts import LEAST_SHARE, HostNetwork, Quotas, shape

__all__ = ["RealFaults", "Shaped", "check_faults"]

_MOST_TRIED = 1000


@final
class Shaped:
    """Hosts whose links have rates, and whose workers have shares of a core.

    Args:
        net: the hosts.
        limits: a group for each worker.
        bytes_per_s: `[a][b]` is from host a to host b.
        shares: of a core, for each worker.
    """

    def __init__(self, net: HostNetwork, limits: Quotas, bytes_per_s: Sequence[Sequence[float]],
                 shares: Sequence[float]) -> None:  # fmt: skip
        self.net, self.limits = net, limits
        self.bytes_per_s, self.shares = [[*row] for row in bytes_per_s], [*shares]

    def slow(self, slower: Sequence[float]) -> None:
        """Gives each worker its share over a factor."""
        self.limits.limit([share / factor for share, factor in zip(self.shares, slower, strict=True)])

    def scale(self, rates: Callable[[int, int], float]) -> None:
        """Gives each link its rate times a factor."""
        shape(self.net, [[rate * rates(a, b) for b, rate in enumerate(row)] for a, row in enumerate(self.bytes_per_s)])

    def full_speed(self) -> None:
        """Takes the workers' limits away."""
        self.limits.limit(None)


@final
class RealFaults:
    """The workers and links as faults change them.

    Args:
        hosts: for each worker the index of its host.
        pids: for each worker its process; None: faults are tried, and nothing is changed.
        shaped: links and shares; None: they can't be changed, or nothing is.
        seed: the run's seed.
        ends_s: when the run ends at the latest.
        lost: is told of a worker that was killed, and when.
        share: where faults are tried, the share of a core that each worker would have; None: it isn't tried.
    """

    def __init__(self, hosts: Sequence[int], pids: Sequence[int] | None, shaped: Shaped | None, seed: int,
                 ends_s: float, lost: Callable[[int, float], None], share: float | None = None) -> None:  # fmt: skip
        self.hosts, self.size, self.ends_s, self.now_s = tuple(hosts), len(hosts), ends_s, 0.0
        self.there, self.changes = [True] * self.size, False
        self._pids, self._shaped, self._seed, self._lost, self._drawn = pids, shaped, seed, lost, 0
        self._share, self._clock_s = share, 0.0
        self._slower: list[list[float]] = [[] for _ in hosts]
        self._rates: dict[frozenset[int], list[float]] = collections.defaultdict(list)
        self._queue = Queue()

    def begin(self, faults: Sequence[Fault]) -> None:
        """Has faults do what they do at second 0."""
        for fault in faults:
            self.spawn(None, fault.run(self))
        self.go_on(0.0)

    def next_s(self) -> float:
        """Returns when the next thing happens."""
        return self._queue.next_s()

    def go_on(self, now_s: float) -> None:
        """Has happen what is to happen until now; what comes late doesn't make later what follows it."""
        self._clock_s = now_s
        while self._queue.next_s() <= now_s:
            self.now_s = self._queue.next_s()
            self._queue.pop()()

    # What faults use.

    def fault_generator(self) -> np.random.Generator:
        """Returns random numbers that nobody else has, for a fault."""
        self._drawn += 1
        return draws(self._seed, 5, self._drawn - 1)

    def spawn(self, worker: Worker | None, program: Program) -> Process:
        """Starts a program of a fault; returns it."""
        process = Process(program, None)
        self._queue.put(self.now_s, lambda: self._resume(process), process)
        return process

    def crash(self, number: int) -> bool:
        """Kills a worker's process; returns whether it was there."""
        if not self.there[number]:
            return False
        if self._pids is not None:
            os.kill(self._pids[number], signal.SIGKILL)
        self.there[number] = False
        self._lost(number, self._clock_s)
        return True

    def start(self, number: int) -> None:
        """Raises ValueError: real workers don't come back."""
        raise ValueError(f"worker {number} comes later, or back, but real workers are there from the beginning, and "
                         "killed for good; leave that fault out")  # fmt: skip

    def slow(self, number: int, factor: float, ends: bool = False) -> None:
        """Gives a worker's process a smaller share of its core, at once; or ends that."""
        change(self._slower[number], factor, ends)
        self.changes, slower = True, [math.prod(factors) for factors in self._slower]
        least = math.inf if self._share is None else self._share / max(slower)
        if least < LEAST_SHARE:
            raise ValueError(f"a worker would be {max(slower):g} times as slow, with {least:.2g} of a core, but must "
                             f"have {LEAST_SHARE:g} at least; give a smaller factor, or fewer workers")  # fmt: skip
        if self._shaped is not None:
            self._shaped.slow(slower)

    def spoil(self, number: int, change: Callable[[int, int, Vector], Vector] | None) -> None:
        """Raises ValueError: real workers send what they have computed."""
        raise ValueError(f"worker {number} has wrong gradients, but real workers send what they have computed; leave "
                         "that fault out, or simulate")  # fmt: skip

    def compute_wrongly(self, number: int, fault: WrongStage | None) -> None:
        """Raises ValueError: real workers compute as they do."""
        raise ValueError(f"worker {number} computes a stage wrongly, but real workers compute as they do; leave that "
                         "fault out, or simulate")  # fmt: skip

    def scale_link(self, a: int, b: int, factor: float, ends: bool = False) -> None:
        """Gives the link between two hosts a factor of its rate; or ends that."""
        if not factor:
            raise ValueError(f"the link between hosts {a} and {b} has a factor of 0, but real links must carry "
                             "something; give one above 0")  # fmt: skip
        change(self._rates[frozenset((a, b))], factor, ends)
        self.changes = True
        if self._shaped is not None:
            self._shaped.scale(lambda a, b: math.prod(self._rates[frozenset((a, b))]))

    def _resume(self, process: Process) -> None:
        process.waits = None
        try:
            effect = process.program.send(None)
        except StopIteration:
            return
        assert isinstance(effect, Sleeping), "faults sleep"
        process.waits = object()
        self._queue.put(self.now_s + effect.seconds, lambda: self._resume(process), process)


def check_faults(faults: Sequence[Fault], hosts: Sequence[int], share: float | None, ends_s: float) -> None:
    """Raises ValueError where faults can't be for real, after trying the first of what they do.

    Args:
        faults: the faults.
        hosts: for each worker the index of its host.
        share: of a core for each worker; None: workers' shares and links' rates can't be changed.
        ends_s: when the run ends at the latest.
    """
    tried = RealFaults(hosts, None, None, 0, ends_s, lambda number, now_s: None, share)
    tried.begin(faults)
    for _ in range(_MOST_TRIED):
        if not tried.next_s() < ends_s:
            break
        tried.go_on(tried.next_s())
    if tried.changes and share is None:
        raise ValueError("faults change a worker's speed or a link, but there are no quotas and shaped links here; "
                         "run this as root on Linux, or leave them out")  # fmt: skip
