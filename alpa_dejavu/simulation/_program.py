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
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu.simulation._ticks import ticks

__all__ = [
    "BACKWARD", "BACKWARD_SEND", "FORWARD", "FORWARD_SEND", "POSTS", "RECEIVE", "SENDS", "START", "UPDATE", "Program",
    "program",
]  # fmt: skip

SENDS = ("blocking", "buffered", "overlapped")
FORWARD, BACKWARD, FORWARD_SEND, BACKWARD_SEND, UPDATE, RECEIVE, START = range(7)
POSTS = (7, 8)
"""The kinds of tasks; those up to UPDATE are in the order in which a `Timeline` has them. `POSTS` hold up a sender
that goes on at once."""
_BLOCKING, _BUFFERED, _OVERLAPPED = range(len(SENDS))
_ARRIVES, _COMPUTES, _DEPARTS = range(3)
"""The phases of a tick, one after the other on all stages."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """The N tasks (forwards, backwards, transfers, updates, ...) of a pipeline's step as arrays, in an order that
    respects which tasks wait for which.

    Attributes:
        kind, stage, micro_batch: shape (N,), each task's kind as a number, its stage (of a transfer, the one that
            sends), and its micro-batch.
        waits: shape (3, N), for each task the up to three tasks that must end before it starts; -1 stands for none.
    """

    kind: NDArray[np.int64]
    stage: NDArray[np.int64]
    micro_batch: NDArray[np.int64]
    waits: NDArray[np.int64]

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
    """Returns the graph of tasks of a step of S stages and B micro-batches: who waits for whom.

    Args:
        schedule: "1f1b", "1f1b_overlap_friendly", "gpipe" or "inference".
        num_stages: S.
        num_micro_batches: B.
        sends: how transfers go: "blocking", "buffered" or "overlapped".
        forward_sends: for each stage, whether its transfer to the next stage takes time.
        backward_sends: for each stage, whether its transfer to the previous stage takes time.
        starts: for each stage, whether it begins only some time after the step's start; (): none does.
    """
    takes_time = np.array([forward_sends, backward_sends], dtype=np.bool_)
    begins = np.array(starts or (False,) * num_stages, dtype=np.bool_)
    early = schedule == "1f1b_overlap_friendly" and sends != "overlapped"
    computations, edges = _computations(schedule, num_stages, num_micro_batches)
    # A computation has at most a post, a transfer and a receipt beside it.
    rows = np.empty((6, 4 * computations.shape[1] + 2 * num_stages), dtype=np.int64)
    count = _build(computations, edges, num_micro_batches, SENDS.index(sends), takes_time, begins, early, rows)
    kind, stage, batch, *waits = (np.ascontiguousarray(row) for row in rows[:, :count])
    return Program(kind, stage, batch, np.stack(waits))


def _computations(schedule: str, num_stages: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Kind, stage and micro-batch of each computation, shape (3, N), by tick and stage; and where each tick ends."""
    forward, backward = ticks(schedule, num_stages, size)
    tick = np.concatenate([table.ravel() for table in (forward, backward) if table is not None])
    stage, batch = np.divmod(np.arange(len(tick)) % (num_stages * size), size)
    kind = np.arange(len(tick)) // (num_stages * size)
    order = np.lexsort((stage, tick))
    ends = np.flatnonzero(np.diff(tick[order], append=-1)) + 1
    return np.ascontiguousarray(np.stack([kind, stage, batch])[:, order]), ends


@compiled("(i8[:, ::1], i8[::1], i8, i8, b1[:, ::1], b1[::1], b1, i8[:, ::1])")
def _build(
    computations: NDArray[np.int64],
    edges: NDArray[np.int64],
    num_micro_batches: int,
    sends: int,
    takes_time: NDArray[np.bool_],
    begins: NDArray[np.bool_],
    early: bool,
    rows: NDArray[np.int64],
) -> int:
    """Sets kind, stage, micro-batch and the three that it waits for of each task, shape (6, more); how many they are.

    Args:
        computations: as `_computations` has them.
        edges: where each tick ends in them.
        num_micro_batches: B.
        sends: which of `SENDS`.
        takes_time: of forward and backward, whether a stage's transfer takes time, shape (2, S).
        begins: whether a stage's start takes time, shape (S,).
        early: whether a transfer goes at the end of the tick that made it, not before the task that needs it.
        rows: the tasks to set.
    """
    num_stages = len(begins)
    made = np.full((2, num_stages, num_micro_batches), -1)  # the forward or backward of a micro-batch
    sent = np.full((2, num_stages, num_micro_batches), -1)  # its transfer, where that went early
    link = np.full((2, num_stages), -1)  # the last transfer of a stage to its neighbour
    last = np.full(num_stages, -1)  # the last task of a stage
    arrived = np.full(computations.shape[1], -1)
    count = np.zeros(1, np.int64)

    def add(kind: int, stage: int, batch: int, first: int, second: int, third: int) -> int:
        n = count[0]
        rows[0, n], rows[1, n], rows[2, n] = kind, stage, batch
        rows[3, n], rows[4, n], rows[5, n] = first, second, third
        count[0] += 1
        return int(n)

    for stage in range(num_stages):
        if begins[stage]:
            last[stage] = add(START, stage, 0, -1, -1, -1)
    begin = 0
    for end in edges:
        for phase in range(_DEPARTS + 1 if early else _COMPUTES + 1):
            for n in range(begin, end):
                kind, stage, batch = computations[0, n], computations[1, n], computations[2, n]
                if phase == _COMPUTES:
                    own = made[FORWARD, stage, batch] if kind == BACKWARD else -1
                    made[kind, stage, batch] = last[stage] = add(kind, stage, batch, last[stage], arrived[n], own)
                    continue
                ahead = 1 if kind == FORWARD else -1
                source = stage - ahead if phase == _ARRIVES else stage
                target = source + ahead
                if not (0 <= source < num_stages and 0 <= target < num_stages):
                    continue
                if not takes_time[kind, source]:
                    task = made[kind, source, batch]
                elif sent[kind, source, batch] >= 0:
                    task = sent[kind, source, batch]
                elif sends == _BLOCKING:
                    task = add(FORWARD_SEND + kind, source, batch, last[source], last[target], -1)
                    last[source] = last[target] = task
                elif sends == _BUFFERED:
                    last[source] = add(POSTS[kind], source, batch, last[source], -1, -1)
                    task = add(FORWARD_SEND + kind, source, batch, last[source], link[kind, source], -1)
                    link[kind, source] = task
                    task = last[target] = add(RECEIVE, target, batch, last[target], task, -1)
                else:
                    task = add(FORWARD_SEND + kind, source, batch, made[kind, source, batch], link[kind, source], -1)
                    link[kind, source] = task
                if phase == _ARRIVES:
                    arrived[n] = task
                else:
                    sent[kind, source, batch] = task
        begin = end
    for stage in range(num_stages):
        add(UPDATE, stage, 0, last[stage], -1, -1)
    return int(count[0])
