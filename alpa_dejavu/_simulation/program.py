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
from numpy.typing import NDArray

from alpa_dejavu._simulation.ticks import ticks

__all__ = [
    "BACKWARD", "BACKWARD_SEND", "FORWARD", "FORWARD_SEND", "POSTS", "RECEIVE", "SENDS", "START", "UPDATE", "Program",
    "program",
]  # fmt: skip

SENDS = ("blocking", "buffered", "overlapped")
FORWARD, BACKWARD, FORWARD_SEND, BACKWARD_SEND, UPDATE, RECEIVE, START = range(7)
POSTS = (7, 8)
"""What a task is; up to UPDATE in the order in which a `Timeline` has them. `POSTS`
hold up a sender that goes on at once."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """Tasks in an order that respects who waits for whom.

    Attributes:
        kind, stage, micro_batch: of each task, shape (N,); of a transfer, the stage that sends.
        waits: for each task the three that it waits for, as three lists of N indices; -1 stands for none.
    """

    kind: NDArray[np.int64]
    stage: NDArray[np.int64]
    micro_batch: NDArray[np.int64]
    waits: tuple[list[int], list[int], list[int]]

    def __len__(self) -> int:
        return len(self.kind)


@functools.lru_cache(maxsize=64)
def program(
    schedule: str,
    num_stages: int,
    num_micro_batches: int,
    sends: str,
    forward_sends: tuple[bool, ...],
    backward_sends: tuple[bool, ...],
    starts: tuple[bool, ...] = (),
) -> Program:
    """The graph of a step of S stages and B micro-batches.

    Schedule and sends are as in `simulate`; the last three say for each stage whether its transfer to the next
    (previous) stage, and its start, takes time.
    """
    builder = _Builder(num_stages, num_micro_batches, sends, (forward_sends, backward_sends))
    for stage in itertools.compress(range(num_stages), starts):
        builder.last[stage] = builder.add(START, stage, 0, -1)
    early = schedule == "1f1b_overlap_friendly" and sends != "overlapped"
    for together in _tasks(schedule, num_stages, num_micro_batches):
        arrivals = [builder.arrival(*task) for task in together]
        for task, arrived in zip(together, arrivals, strict=True):
            builder.compute(*task, arrived)
        if early:
            for task in together:
                builder.departure(*task)
    for stage in range(num_stages):
        builder.add(UPDATE, stage, 0, builder.last[stage])
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

    def __init__(
        self, num_stages: int, size: int, sends: str, take_time: tuple[tuple[bool, ...], tuple[bool, ...]]
    ) -> None:
        self._num_stages, self._size, self._sends, self._take_time = num_stages, size, sends, take_time
        self._kind: list[int] = []
        self._stage: list[int] = []
        self._batch: list[int] = []
        self._waits: tuple[list[int], list[int], list[int]] = ([], [], [])
        self._made = [[-1] * (num_stages * size) for _ in (FORWARD, BACKWARD)]
        self._sent = [[-1] * (num_stages * size) for _ in (FORWARD, BACKWARD)]
        self._link = [[-1] * num_stages for _ in (FORWARD, BACKWARD)]
        self.last = [-1] * num_stages

    def add(self, kind: int, stage: int, batch: int, first: int, second: int = -1, third: int = -1) -> int:
        """Appends a task."""
        self._kind.append(kind)
        self._stage.append(stage)
        self._batch.append(batch)
        self._waits[0].append(first)
        self._waits[1].append(second)
        self._waits[2].append(third)
        return len(self._kind) - 1

    def arrival(self, kind: int, stage: int, batch: int) -> int:
        """What brings a forward or backward its input from a neighbour: a transfer, or the neighbour's own task."""
        source = stage - 1 if kind == FORWARD else stage + 1
        if not 0 <= source < self._num_stages:
            return -1
        made = source * self._size + batch
        if not self._take_time[kind][source]:
            return self._made[kind][made]
        sent = self._sent[kind][made]
        return self._transfer(kind, source, stage, batch) if sent < 0 else sent

    def departure(self, kind: int, stage: int, batch: int) -> None:
        """Sends what a forward or backward made before anybody asks for it."""
        target = stage + 1 if kind == FORWARD else stage - 1
        if 0 <= target < self._num_stages and self._take_time[kind][stage]:
            self._sent[kind][stage * self._size + batch] = self._transfer(kind, stage, target, batch)

    def compute(self, kind: int, stage: int, batch: int, arrived: int) -> None:
        """A forward or backward."""
        made = stage * self._size + batch
        own = self._made[FORWARD][made] if kind == BACKWARD else -1
        self._made[kind][made] = self.last[stage] = self.add(kind, stage, batch, self.last[stage], arrived, own)

    def _transfer(self, kind: int, source: int, target: int, batch: int) -> int:
        send = FORWARD_SEND if kind == FORWARD else BACKWARD_SEND
        if self._sends == "blocking":
            task = self.add(send, source, batch, self.last[source], self.last[target])
            self.last[source] = self.last[target] = task
            return task
        if self._sends == "overlapped":
            before = self._made[kind][source * self._size + batch]
        else:
            before = self.last[source] = self.add(POSTS[kind], source, batch, self.last[source])
        task = self._link[kind][source] = self.add(send, source, batch, before, self._link[kind][source])
        if self._sends == "buffered":
            task = self.last[target] = self.add(RECEIVE, target, batch, self.last[target], task)
        return task

    def program(self) -> Program:
        """All of it, as columns."""
        return Program(np.array(self._kind), np.array(self._stage), np.array(self._batch), self._waits)
