"""Faults of real workers: processes are killed, quotas and links' rates change, at times of the clock on the wall."""

from __future__ import annotations

import collections
import math
import os
import signal
from collections.abc import Callable, Sequence
from typing import cast, final

import numpy as np

from alpa_dejavu.playground._fault import Fault
from alpa_dejavu.playground._queue import Process, Queue, Sleeping
from alpa_dejavu.playground._virtual_world import VirtualWorld
from alpa_dejavu.playground._world import Program, Worker, change
from real_hosts import HostNetwork, Quotas, shape

__all__ = ["RealFaults", "Shaped"]


@final
class Shaped:
    """Hosts whose links have rates (`[a][b]` from a to b), and whose workers, a group each, have shares of a core."""

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


@final
class RealFaults:
    """The workers and links as faults change them: by kills, which `lost` is told of, slow-downs and links' rates."""

    def __init__(self, hosts: Sequence[int], pids: Sequence[int], shaped: Shaped, seed: int, ends_s: float,
                 lost: Callable[[int, float], None]) -> None:  # fmt: skip
        self.hosts, self.size, self.ends_s, self.now_s = tuple(hosts), len(hosts), ends_s, 0.0
        self.alive = [True] * self.size
        self._pids, self._shaped, self._seed, self._lost, self._drawn = pids, shaped, seed, lost, 0
        self._clock_s = 0.0
        self._slower: list[list[float]] = [[] for _ in hosts]
        self._rates: dict[frozenset[int], list[float]] = collections.defaultdict(list)
        self._queue = Queue()

    def begin(self, faults: Sequence[Fault]) -> None:
        """Has faults do what they do at second 0."""
        for fault in faults:
            self.spawn(None, fault.run(cast(VirtualWorld, self)))
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
        return np.random.default_rng([self._seed, 5, self._drawn - 1])

    def spawn(self, worker: Worker | None, program: Program) -> Process:
        """Starts a program of a fault; returns it."""
        process = Process(program, None)
        self._queue.put(self.now_s, lambda: self._resume(process), process)
        return process

    def crash(self, number: int) -> bool:
        """Kills a worker's process; returns whether it was alive."""
        if not self.alive[number]:
            return False
        os.kill(self._pids[number], signal.SIGKILL)
        self.alive[number] = False
        self._lost(number, self._clock_s)
        return True

    def slow(self, number: int, factor: float, ends: bool = False) -> None:
        """Gives a worker's process a smaller share of its core, at once; or ends that."""
        change(self._slower[number], factor, ends)
        self._shaped.slow([math.prod(factors) for factors in self._slower])

    def scale_link(self, a: int, b: int, factor: float, ends: bool = False) -> None:
        """Gives the link between two hosts a factor of its rate; or ends that."""
        change(self._rates[frozenset((a, b))], factor, ends)
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
