"""Checks that a schedule's lists of tasks are complete: each task once, each stage on one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from alpa_dejavu.problem.limits import MOST_MICRO_BATCHES
from alpa_dejavu.schedules._task import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, KINDS, Task, TaskTable

__all__ = ["check_complete"]

_MOST_STAGES = 4096


def check_complete(name: str, tasks: Sequence[Sequence[Task]], table: TaskTable) -> None:
    """Raises ValueError unless each stage is on one device and has each of its tasks once; names what is wrong. The
    table has the same tasks.
    """
    owner = f"schedule {name}"
    if not tasks or not all(tasks):
        empty = next((device for device, row in enumerate(tasks) if not row), None)
        said = "there are no devices" if empty is None else f"device {empty} has no tasks"
        raise ValueError(f"{owner}: {said}; give each device at least one stage")
    stages, size = _bounds(owner, tasks)
    if _is_complete(table, stages, size):
        return
    seen: set[Task] = set()
    place: dict[int, int] = {}
    for device, row in enumerate(tasks):
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


def _bounds(owner: str, tasks: Sequence[Sequence[Task]]) -> tuple[int, int]:
    """Returns the numbers of stages and micro-batches."""
    stages = 1 + max(task.stage for row in tasks for task in row)
    size = 1 + max(task.micro_batch for row in tasks for task in row)
    for field, value, most in (("stages", stages, _MOST_STAGES), ("micro-batches", size, MOST_MICRO_BATCHES)):
        if value > most:
            raise ValueError(f"{owner}: there are {value} {field}, but there may be at most {most}")
    return stages, size


def _is_complete(table: TaskTable, stages: int, size: int) -> bool:
    """Returns whether nothing is wrong; if something is, the slower checks say what."""
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
            whole, first, second = (
                Task(kind, stage, batch) for kind in (BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
            )
            if Task(FORWARD, stage, batch) not in seen:
                yield f"{Task(FORWARD, stage, batch)} is missing; each stage needs a forward of each micro-batch"
            halves = (first in seen) + (second in seen)
            if whole in seen and halves:
                yield f"{whole} is there beside {first if first in seen else second}, a part of it; take one out"
            if halves == 1:
                yield f"{second if first in seen else first} is missing; a split backward has both parts"
            if trains and whole not in seen and not halves:
                yield f"{whole} is missing; each stage needs a backward of each micro-batch, or its parts I and W"
