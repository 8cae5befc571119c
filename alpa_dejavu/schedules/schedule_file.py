"""Schedules in files: a line for each device, with a cell such as 2F0 for each task.

The form is that of the `pipeline_parallel_schedule_csv` of PyTorch's runtime: stage, one of F, B, I and W, and
micro-batch. Empty cells say nothing. Communication between the tasks isn't part of a schedule.
"""

from __future__ import annotations

import pathlib

from alpa_dejavu._util.json_file import csv_lines, write_whole
from alpa_dejavu.schedules._schedule import Schedule
from alpa_dejavu.schedules._task import Task

__all__ = ["read_schedule", "schedule_text", "write_schedule"]

_REMEDY = "a schedule has a line for each device, with cells such as 0F0,0F1,0B0,0B1"


def read_schedule(path: str | pathlib.Path, updates_each: bool = False) -> Schedule:
    """Returns the schedule that a file has, checked.

    Args:
        path: the path of the file, whose name becomes the schedule's.
        updates_each: whether the optimizer updates the weights after each micro-batch, which a file doesn't say.

    Raises:
        ValueError: the file can't be read, a cell is no task, or the tasks are no schedule; says what is wrong where.
    """
    path = pathlib.Path(path)
    rows: list[tuple[Task, ...]] = []
    for line, cells in csv_lines(path, _REMEDY):
        try:
            rows.append(tuple(Task.of(cell.strip()) for cell in cells if cell.strip()))
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}; {_REMEDY}") from None
    while rows and not rows[-1]:
        rows.pop()
    try:
        return Schedule(path.stem, tuple(rows), updates_each)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def write_schedule(path: str | pathlib.Path, schedule: Schedule) -> None:
    """Writes a schedule to a file as PyTorch's runtime reads it, a line for each device.

    Raises:
        ValueError: the file can't be written; says why.
    """
    write_whole(pathlib.Path(path), schedule_text(schedule))


def schedule_text(schedule: Schedule) -> str:
    """Returns the text of a schedule's file, a line for each device."""
    return "".join(",".join(map(str, row)) + "\n" for row in schedule.tasks)
