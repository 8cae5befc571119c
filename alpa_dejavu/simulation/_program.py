"""The tasks of a step as a graph: each waits for at most three others, all of which stand before it.

The order of tasks on each device is fixed by the schedule, so nothing has to be decided while time passes. Where the
transfers stand is where Alpa's runtime puts them: just before the task that needs them, at that task's tick, on both
sides; in the overlap-friendly schedule at the end of the tick that makes them. Between stages on one device nothing is
transferred.

References:
    Alpa 0.2.3, alpa/pipeline_parallel/runtime_emitter.py.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu.schedules import Schedule, TaskTable

__all__ = [
    "BACKWARD", "BACKWARD_INPUT", "BACKWARD_SEND", "BACKWARD_WEIGHT", "FORWARD", "FORWARD_SEND", "NAMES", "POSTS",
    "RECEIVE", "SENDS", "START", "UPDATE", "StepProgram", "program", "program_of",
]  # fmt: skip

SENDS = ("blocking", "buffered", "overlapped")
FORWARD, BACKWARD, FORWARD_SEND, BACKWARD_SEND, UPDATE, RECEIVE, START = range(7)
POSTS = (7, 8)
"""The kinds of tasks; those up to UPDATE are in the order in which a `Timeline` has them. `POSTS` hold up a sender
that goes on at once."""
BACKWARD_INPUT, BACKWARD_WEIGHT = 9, 10
NAMES = (
    "forward", "backward", "forward send", "backward send", "update", "receive", "start", "forward post",
    "backward post", "backward by input", "backward by weight",
)  # fmt: skip
"""The names of the kinds of tasks."""
_KINDS = np.array([FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT])
"""The kinds of a schedule's tasks, in its order of them."""
_BLOCKING, _BUFFERED, _OVERLAPPED = range(len(SENDS))
_ARRIVES, _COMPUTES, _DEPARTS = range(3)
"""The phases of a tick, one after the other on all stages."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class StepProgram:
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

    @property
    def names(self) -> list[str]:
        """Returns the name of each task's kind, such as "forward send"."""
        return [NAMES[kind] for kind in self.kind.tolist()]


@functools.lru_cache(maxsize=16)
def program(
    schedule: Schedule,
    sends: str,
    forward_sends: tuple[bool, ...],
    backward_sends: tuple[bool, ...],
    starts: tuple[bool, ...] = (),
) -> StepProgram:
    """Returns the graph of tasks of a schedule of S stages and B micro-batches: who waits for whom. For each stage it
    is told whether its transfer to the next stage, that to the previous one and its start take time; (): no start does.
    """
    takes_time = np.array([forward_sends, backward_sends], dtype=np.bool_)
    begins = np.array(starts or (False,) * schedule.num_stages, dtype=np.bool_)
    early = schedule.name == "1f1b_overlap_friendly" and sends != "overlapped"
    graph, _ = program_of(
        schedule.table, schedule.ticks, schedule.device_of, schedule.num_micro_batches, sends, takes_time, begins,
        early, schedule.updates_each,
    )  # fmt: skip
    return graph


def program_of(
    table: TaskTable, ticks: NDArray[np.int64], device_of: Sequence[int], num_micro_batches: int, sends: str,
    takes_time: NDArray[np.bool_], begins: NDArray[np.bool_], early: bool = False, updates_each: bool = False,
) -> tuple[StepProgram, NDArray[np.int64]]:
    """Returns the graph of a schedule's tasks, and which of the schedule's N tasks each computation in it is: shape
    (N,), in the order of the graph.

    Args:
        table: the N tasks of the schedule.
        ticks: shape (N,), the ticks of the tasks.
        device_of: the device of each of S stages.
        num_micro_batches: B.
        sends: how transfers go: "blocking", "buffered" or "overlapped".
        takes_time: shape (2, S), of forward and backward, whether a stage's transfer takes time.
        begins: shape (S,), whether a stage begins only some time after the step's start.
        early: whether a transfer goes at the end of the tick that made it, not before the task that needs it.
        updates_each: whether the optimizer updates the weights after each micro-batch.
    """
    order = np.lexsort((table.stage, ticks))
    edges = np.flatnonzero(np.diff(ticks[order], append=-1)) + 1
    columns = np.stack([_KINDS[table.kind], table.stage, table.micro_batch])
    computations = np.ascontiguousarray(columns[:, order])
    # A computation has at most a post, a transfer, a receipt and an update beside it.
    rows = np.empty((6, 5 * len(order) + 2 * len(device_of)), dtype=np.int64)
    count = _build(
        computations, edges, np.array(device_of), num_micro_batches, SENDS.index(sends), takes_time, begins, early,
        updates_each, rows,
    )  # fmt: skip
    kind, stage, batch, *waits = (np.ascontiguousarray(row) for row in rows[:, :count])
    return StepProgram(kind, stage, batch, np.stack(waits)), order


@compiled("(i8[:, ::1], i8[::1], i8[::1], i8, i8, b1[:, ::1], b1[::1], b1, b1, i8[:, ::1])", may_wait=True)
def _build(
    computations: NDArray[np.int64],
    edges: NDArray[np.int64],
    device_of: NDArray[np.int64],
    num_micro_batches: int,
    sends: int,
    takes_time: NDArray[np.bool_],
    begins: NDArray[np.bool_],
    early: bool,
    updates_each: bool,
    rows: NDArray[np.int64],
) -> int:
    """Sets kind, stage, micro-batch and the three that it waits for of each task in `rows`, shape (6, more); returns
    how many they are.

    `computations` are the schedule's tasks by ticks, shape (3, N): kind, stage and micro-batch; `edges` say where each
    tick ends in them. The other arguments are those of `program_of`, with `sends` as the index into `SENDS`.
    """
    num_stages = len(begins)
    computed = np.full((2, num_stages, num_micro_batches), -1)  # the forward or backward of a micro-batch
    sent = np.full((2, num_stages, num_micro_batches), -1)  # its transfer, where that went early
    link = np.full((2, num_stages), -1)  # the last transfer of a stage to its neighbour
    last = np.full(num_stages, -1)  # the last task of a device
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
            device = device_of[stage]
            last[device] = add(START, stage, 0, last[device], -1, -1)
    begin = 0
    for end in edges:
        for phase in range(_DEPARTS + 1 if early else _COMPUTES + 1):
            for n in range(begin, end):
                kind, stage, batch = computations[0, n], computations[1, n], computations[2, n]
                device = device_of[stage]
                # A backward by inputs takes the place of the whole one for all that wait for it.
                way = BACKWARD if kind == BACKWARD_INPUT else kind
                if phase == _COMPUTES:
                    own = -1
                    if kind == BACKWARD_WEIGHT:
                        own = computed[BACKWARD, stage, batch]
                    elif kind != FORWARD:
                        own = computed[FORWARD, stage, batch]
                    last[device] = add(kind, stage, batch, last[device], arrived[n], own)
                    if kind != BACKWARD_WEIGHT:
                        computed[way, stage, batch] = last[device]
                    if updates_each and kind in (BACKWARD, BACKWARD_WEIGHT):
                        last[device] = add(UPDATE, stage, batch, last[device], -1, -1)
                    continue
                if kind == BACKWARD_WEIGHT:
                    continue
                ahead = 1 if kind == FORWARD else -1
                source = stage - ahead if phase == _ARRIVES else stage
                target = source + ahead
                if not (0 <= source < num_stages and 0 <= target < num_stages):
                    continue
                sender, receiver = device_of[source], device_of[target]
                if sender == receiver or not takes_time[way, source]:
                    task = computed[way, source, batch]
                elif sent[way, source, batch] >= 0:
                    task = sent[way, source, batch]
                elif sends == _BLOCKING:
                    task = add(FORWARD_SEND + way, source, batch, last[sender], last[receiver], -1)
                    last[sender] = last[receiver] = task
                elif sends == _BUFFERED:
                    post = add(POSTS[way], source, batch, last[sender], -1, -1)
                    last[sender] = post
                    task = add(FORWARD_SEND + way, source, batch, post, link[way, source], -1)
                    link[way, source] = task
                    task = last[receiver] = add(RECEIVE, target, batch, last[receiver], task, -1)
                else:
                    task = add(FORWARD_SEND + way, source, batch, computed[way, source, batch], link[way, source], -1)
                    link[way, source] = task
                if phase == _ARRIVES:
                    arrived[n] = task
                else:
                    sent[way, source, batch] = task
        begin = end
    for stage in range(0 if updates_each else num_stages):
        device = device_of[stage]
        last[device] = add(UPDATE, stage, 0, last[device], -1, -1)
    return int(count[0])
