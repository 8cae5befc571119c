"""The queue of events in virtual time, and the programs that they are for."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import final

from alpa_dejavu.playground._worker import Program, Worker

__all__ = ["Process", "Queue"]


@final
class Process:
    """A program that is under way on a worker, and what it waits for; faults run on no worker."""

    __slots__ = ("program", "waits", "worker")

    def __init__(self, program: Program, worker: Worker | None) -> None:
        self.program, self.worker = program, worker
        self.waits: object = program


@final
class Queue:
    """Actions by their time; of those at the same time, the one that was put in first comes first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None], Process | None, object]] = []
        self._order = 0

    def put(self, time_s: float, action: Callable[[], None], process: Process | None = None) -> None:
        """Puts in an action; one for a process is left out once that waits for something else."""
        self._order += 1
        heapq.heappush(self._heap, (time_s, self._order, action, process, process and process.waits))

    def next_s(self) -> float:
        """Returns the time of the next action; infinity if there is none."""
        while self._heap and self._heap[0][3] is not None and self._heap[0][3].waits is not self._heap[0][4]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def pop(self) -> Callable[[], None]:
        """Removes the next action, and returns it."""
        return heapq.heappop(self._heap)[2]
