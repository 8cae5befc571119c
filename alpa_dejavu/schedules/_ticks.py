"""The order of tasks in time: the tick at which each would run if all took equally long.

Ticks order the tasks of all devices among each other; how long a task takes is another matter. For the schedules that
Alpa has they are the rows of its tables.

References:
    Alpa 0.2.3, alpa/pipeline_parallel/schedules.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu.schedules._task import KINDS, Task, TaskTable

__all__ = ["stuck", "unit_ticks"]

_F, _B, _I, _W = range(len(KINDS))


def unit_ticks(table: TaskTable, num_stages: int, num_micro_batches: int) -> NDArray[np.int64]:
    """Returns the tick of each task of a schedule, shape (N,); -1 for tasks that never can begin."""
    return _unit_ticks(table.kind, table.stage, table.micro_batch, table.device, num_stages, num_micro_batches)


@compiled("(i8[::1], i8[::1], i8[::1], i8[::1], i8, i8)")
def _unit_ticks(
    kind: NDArray[np.int64],
    stage: NDArray[np.int64],
    batch: NDArray[np.int64],
    device: NDArray[np.int64],
    num_stages: int,
    size: int,
) -> NDArray[np.int64]:
    """Goes through all devices' lists again and again, each as far as it can, until none goes on."""
    total = len(kind)
    num_devices = device[-1] + 1
    begin = np.zeros(num_devices + 1, np.int64)
    for n in range(total):
        begin[device[n] + 1] = n + 1
    at = begin[:-1].copy()
    free = np.zeros(num_devices, np.int64)
    # After which tick something is there: forward, and backward by inputs, of each stage and micro-batch.
    forward = np.full((num_stages, size), -1)
    backward = np.full((num_stages, size), -1)
    ticks = np.full(total, -1)
    moved = True
    while moved:
        moved = False
        for d in range(num_devices):
            while at[d] < begin[d + 1]:
                n = at[d]
                k, s, b = kind[n], stage[n], batch[n]
                after = 0
                if k == _F:
                    if s > 0:
                        after = forward[s - 1, b]
                elif k == _W:
                    after = backward[s, b]
                else:
                    after = forward[s, b]
                    if s + 1 < num_stages and after >= 0:
                        behind = backward[s + 1, b]
                        after = -1 if behind < 0 else max(after, behind)
                if after < 0:
                    break
                ticks[n] = max(after, free[d])
                free[d] = ticks[n] + 1
                if k == _F:
                    forward[s, b] = free[d]
                elif k != _W:
                    backward[s, b] = free[d]
                at[d] = n + 1
                moved = True
    return ticks


def stuck(table: TaskTable, ticks: NDArray[np.int64]) -> str:
    """Returns in words what each device that can't go on waits for."""
    done = {table.task(n) for n in np.flatnonzero(ticks >= 0)}
    last, said = 1 + int(table.stage.max()), []
    for device in np.unique(table.device[ticks < 0]):
        task = table.task(int(np.flatnonzero((table.device == device) & (ticks < 0))[0]))
        lacking = next(str(one[0]) for one in _needs(task, last) if not done & set(one))
        said.append(f"{task} on device {device} waits for {lacking}")
    return ", and ".join(said[:4])


def _needs(task: Task, num_stages: int) -> list[tuple[Task, ...]]:
    """Returns what a task needs; of each group any one."""
    kind, stage, batch = task
    if kind == KINDS[_F]:
        return [(Task(kind, stage - 1, batch),)] if stage else []
    if kind == KINDS[_W]:
        return [(Task(KINDS[_I], stage, batch),)]
    behind = [(Task(KINDS[_B], stage + 1, batch), Task(KINDS[_I], stage + 1, batch))] if stage + 1 < num_stages else []
    return [(Task(KINDS[_F], stage, batch),), *behind]
