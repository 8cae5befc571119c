"""Checks that a schedule's lists of tasks are complete, and the order of its tasks in time: the tick at which each
would run if all took equally long.

Ticks order the tasks of all devices among each other; how long a task takes is another matter. For the schedules that
Alpa has they are the rows of its tables.

References:
    Alpa 0.2.3, alpa/pipeline_parallel/schedules.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu.problem.limits import MOST_MICRO_BATCHES
from alpa_dejavu.schedules._task import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, KINDS, Task, TaskTable

__all__ = ["check_complete", "check_devices", "stuck", "unit_ticks"]

_MOST_STAGES = 4096


def check_devices(name: str, tasks: Sequence[Sequence[Task | str]]) -> None:
    """Raises ValueError unless there are devices, and each has tasks."""
    if not tasks or not all(tasks):
        empty = next((device for device, row in enumerate(tasks) if not row), None)
        lack = "there are no devices" if empty is None else f"device {empty} has no tasks"
        raise ValueError(f"schedule {name}: {lack}; give each device at least one stage")


def check_complete(name: str, table: TaskTable) -> None:
    """Raises ValueError unless each stage is on one device and has each of its tasks once."""
    owner = f"schedule {name}"
    stages, size = 1 + int(table.stage.max()), 1 + int(table.micro_batch.max())
    for field, value, most in (("stages", stages, _MOST_STAGES), ("micro-batches", size, MOST_MICRO_BATCHES)):
        if value > most:
            raise ValueError(f"{owner}: there are {value} {field}, but there may be at most {most}")
    if _is_complete(table, stages, size):
        return
    seen: set[Task] = set()
    place: dict[int, int] = {}
    for device, row in enumerate(table.rows):
        for task in row:
            if place.setdefault(task.stage, device) != device:
                raise ValueError(
                    f"{owner}: stage {task.stage} is on devices {place[task.stage]} and {device}, but must be on one"
                )
            if task in seen:
                raise ValueError(f"{owner}: {task} is there twice, on device {device}; take one out")
            seen.add(task)
    missing = next((stage for stage in range(stages) if stage not in place), None)
    if missing is not None:
        raise ValueError(f"{owner}: stage {missing} is on no device; the stages are numbered from 0 without gaps")
    trains = any(task.kind != FORWARD for task in seen)
    for wrong in _wrong(seen, stages, size, trains):
        raise ValueError(f"{owner}: {wrong}")


def _is_complete(table: TaskTable, stages: int, size: int) -> bool:
    """Whether nothing is wrong; if something is, the slower checks say what."""
    if stages * size > len(table.kind):  # not each has its forward pass: a few tasks may name numbers far up
        return False
    counts = np.zeros((len(KINDS), stages, size), dtype=np.int64)
    np.add.at(counts, (table.kind, table.stage, table.micro_batch), 1)
    forward, whole, by_input, by_weight = counts
    device = np.zeros(stages, dtype=np.int64)
    device[table.stage] = table.device
    backward = whole + by_input
    return bool(
        (forward == 1).all()
        and (by_input == by_weight).all()
        and ((backward == 1).all() or not backward.any())
        and (device[table.stage] == table.device).all()
    )


def _wrong(seen: set[Task], stages: int, size: int, trains: bool) -> Iterator[str]:
    """Yields what is missing, or there in two ways."""
    for stage in range(stages):
        for batch in range(size):
            whole, first, second = (Task(kind, stage, batch) for kind in (BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT))
            if Task(FORWARD, stage, batch) not in seen:
                yield f"{Task(FORWARD, stage, batch)} is missing; each stage needs a forward of each micro-batch"
            halves = (first in seen) + (second in seen)
            if whole in seen and halves:
                yield f"{whole} is there beside {first if first in seen else second}, a part of it; take one out"
            if halves == 1:
                yield f"{second if first in seen else first} is missing; a split backward has both parts"
            if trains and whole not in seen and not halves:
                yield f"{whole} is missing; each stage needs a backward of each micro-batch, or its parts I and W"


_F, _B, _I, _W = range(len(KINDS))


def unit_ticks(table: TaskTable, num_stages: int, num_micro_batches: int) -> NDArray[np.int64]:
    """Returns the tick of each task of a schedule, shape (N,); -1 for tasks that never can begin."""
    return _unit_ticks(table.kind, table.stage, table.micro_batch, table.device, num_stages, num_micro_batches)


@compiled("(i8[::1], i8[::1], i8[::1], i8[::1], i8, i8)", may_wait=True)
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
    last, sentences = 1 + int(table.stage.max()), []
    for device in np.unique(table.device[ticks < 0]):
        task = table.task(int(np.flatnonzero((table.device == device) & (ticks < 0))[0]))
        lacking = next(str(group[0]) for group in _needs(task, last) if not done & set(group))
        sentences.append(f"{task} on device {device} waits for {lacking}")
    return ", and ".join(sentences[:4])


def _needs(task: Task, num_stages: int) -> list[tuple[Task, ...]]:
    """The tasks that a task needs; of each group any one."""
    kind, stage, batch = task
    if kind == KINDS[_F]:
        return [(Task(kind, stage - 1, batch),)] if stage else []
    if kind == KINDS[_W]:
        return [(Task(KINDS[_I], stage, batch),)]
    behind = [(Task(KINDS[_B], stage + 1, batch), Task(KINDS[_I], stage + 1, batch))] if stage + 1 < num_stages else []
    return [(Task(KINDS[_F], stage, batch),), *behind]
