"""The tasks of a step as a graph: each waits for at most three others, all of which stand before it.

The order of tasks on each stage is fixed by the schedule, so nothing has to be decided while time passes. Where the
transfers stand is where Alpa's runtime puts them: just before the task that needs them, at that task's tick, on both
sides; in the overlap-friendly schedule at the end of the tick that makes them.

References:
    Alpa 0.2.3, alpa/pipeline_parallel/runtime_emitter.py.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import final

import numpy as np

from alpa_dejavu._simulation.ticks import ticks

__all__ = ["BACKWARD", "BACKWARD_SEND", "FORWARD", "FORWARD_SEND", "RECEIVE", "SENDS", "UPDATE", "Program", "program"]

SENDS = ("blocking", "buffered", "overlapped")
FORWARD, BACKWARD, FORWARD_SEND, BACKWARD_SEND, UPDATE, RECEIVE = range(6)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """Tasks in an order that respects who waits for whom.

    Attributes:
        kind, stage, micro_batch: of each task, shape (N,); of a transfer, the stage that sends.
        waits: for each task the three that it waits for, as three lists of N indices; N stands for none.
    """

    kind: np.ndarray
    stage: np.ndarray
    micro_batch: np.ndarray
    waits: tuple[list[int], list[int], list[int]]

    def __len__(self) -> int:
        return len(self.kind)


@functools.lru_cache(maxsize=8)
def program(
    schedule: str,
    num_stages: int,
    num_micro_batches: int,
    sends: str,
    forward_sends: tuple[bool, ...],
    backward_sends: tuple[bool, ...],
) -> Program:
    """The graph of a step.

    Args:
        schedule: one of `problem.Run`'s.
        num_stages, num_micro_batches: S and B.
        sends: one of `SENDS`.
        forward_sends, backward_sends: for each stage, whether its transfer to the next (previous) one takes time.
    """
    builder = _Builder(num_stages, sends, (forward_sends, backward_sends))
    for together in _tasks(schedule, num_stages, num_micro_batches):
        arrivals = [builder.arrival(*task) for task in together]
        for task, arrived in zip(together, arrivals, strict=True):
            builder.compute(*task, arrived)
        if schedule == "1f1b_overlap_friendly" and sends != "overlapped":
            for task in together:
                builder.departure(*task)
    for stage in range(num_stages):
        builder.add(UPDATE, stage, 0, builder.last.get(("stage", stage)))
    return builder.program()


def _tasks(schedule: str, num_stages: int, size: int) -> list[list[tuple[int, int, int]]]:
    """For each tick kind, stage and micro-batch of its computations, by stage."""
    forward, backward = ticks(schedule, num_stages, size)
    tick = np.concatenate([table.ravel() for table in (forward, backward) if table is not None])
    stage, batch = np.divmod(np.arange(len(tick)) % (num_stages * size), size)
    kind = np.arange(len(tick)) // (num_stages * size)
    order = np.lexsort((stage, tick))
    tasks = list(zip(kind[order].tolist(), stage[order].tolist(), batch[order].tolist(), strict=True))
    edges = [*np.flatnonzero(np.diff(tick[order], prepend=-1)).tolist(), len(tasks)]
    return [tasks[start:end] for start, end in itertools.pairwise(edges)]


@final
class _Builder:
    """Tasks so far, and what was last on each stage and link."""

    def __init__(self, num_stages: int, sends: str, take_time: tuple[tuple[bool, ...], tuple[bool, ...]]) -> None:
        self._num_stages, self._sends, self._take_time = num_stages, sends, take_time
        self._tasks: list[tuple[int, int, int]] = []
        self._waits: tuple[list[int | None], ...] = ([], [], [])
        self._made: dict[tuple[int, int, int], int] = {}
        self._sent: dict[tuple[int, int, int], int] = {}
        self.last: dict[tuple[str, int], int] = {}

    def add(self, kind: int, stage: int, batch: int, *waits: int | None) -> int:
        """Appends a task."""
        self._tasks.append((kind, stage, batch))
        for n, column in enumerate(self._waits):
            column.append(waits[n] if n < len(waits) else None)
        return len(self._tasks) - 1

    def arrival(self, kind: int, stage: int, batch: int) -> int | None:
        """What brings a forward or backward its input from a neighbour: a transfer, or the neighbour's own task."""
        source = stage - 1 if kind == FORWARD else stage + 1
        if not 0 <= source < self._num_stages:
            return None
        made = self._made[kind, source, batch]
        if not self._take_time[kind][source]:
            return made
        sent = self._sent.get((kind, source, batch))
        return self._transfer(kind, source, stage, batch, made) if sent is None else sent

    def departure(self, kind: int, stage: int, batch: int) -> None:
        """Sends what a forward or backward made before anybody asks for it."""
        target = stage + 1 if kind == FORWARD else stage - 1
        if 0 <= target < self._num_stages and self._take_time[kind][stage]:
            made = self._made[kind, stage, batch]
            self._sent[kind, stage, batch] = self._transfer(kind, stage, target, batch, made)

    def compute(self, kind: int, stage: int, batch: int, arrived: int | None) -> None:
        """A forward or backward."""
        own = self._made[FORWARD, stage, batch] if kind == BACKWARD else None
        task = self.add(kind, stage, batch, self.last.get(("stage", stage)), arrived, own)
        self._made[kind, stage, batch] = self.last["stage", stage] = task

    def _transfer(self, kind: int, source: int, target: int, batch: int, made: int) -> int:
        send = FORWARD_SEND if kind == FORWARD else BACKWARD_SEND
        sender, receiver = ("stage", source), ("stage", target)
        link = ("forward link" if kind == FORWARD else "backward link", source)
        if self._sends == "blocking":
            task = self.add(send, source, batch, self.last.get(sender), self.last.get(receiver))
            self.last[sender] = self.last[receiver] = task
            return task
        before = made if self._sends == "overlapped" else self.last[sender]
        task = self.add(send, source, batch, before, self.last.get(link))
        self.last[link] = task
        if self._sends == "buffered":
            task = self.add(RECEIVE, target, batch, self.last.get(receiver), task)
            self.last[receiver] = task
        return task

    def program(self) -> Program:
        """All of it, as columns."""
        size = len(self._tasks)
        kind, stage, batch = np.array(self._tasks, dtype=np.int64).T
        first, second, third = ([size if x is None else x for x in column] for column in self._waits)
        return Program(kind, stage, batch, (first, second, third))
