"""The tasks of a pipeline's devices: each a pass of a stage for a micro-batch; one by one, and as columns."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["BACKWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT", "FORWARD", "KEPT", "KINDS", "Task", "TaskTable"]

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = KINDS = ("F", "B", "I", "W")
"""A forward, a whole backward, and its two parts: by the stage's input, which the stage before waits for, and by its
weights, which can wait. They are the letters of PyTorch's schedules."""
KEPT = {FORWARD: 1, BACKWARD: -1, BACKWARD_INPUT: 0, BACKWARD_WEIGHT: -1}
"""By how many a task of each kind changes the number of activations that are kept."""
_CELL = re.compile(r"(\d{1,6})([A-Z])(\d{1,6})")


class Task(NamedTuple):
    """A pass of a stage for a micro-batch, both counted from 0: "F" forward, "B" backward, or its parts "I", by inputs,
    and "W", by weights.

    >>> str(Task("I", 2, 7)), Task.of("2I7")
    ('2I7', Task(kind='I', stage=2, micro_batch=7))
    """

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @classmethod
    def of(cls, task: Task | str) -> Task:
        """Returns the task that a text such as "2F0" (stage 2, forward, micro-batch 0) names, or the given task.

        Raises:
            ValueError: the text isn't of that form.
        """
        if isinstance(task, Task):
            return task
        parts = _CELL.fullmatch(task)
        if parts is None or parts[2] not in KINDS:
            kinds = ", ".join(KINDS)
            raise ValueError(f"task is {task!r}, but must be a stage, one of {kinds}, and a micro-batch, such as 2F0")
        return cls(parts[2], int(parts[1]), int(parts[3]))


class TaskTable(NamedTuple):
    """All N tasks of a schedule as columns of shape (N,), device by device: `kind` as an index into `KINDS`."""

    kind: NDArray[np.int64]
    stage: NDArray[np.int64]
    micro_batch: NDArray[np.int64]
    device: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Iterable[Task]]) -> TaskTable:
        """Returns the table of each device's tasks, in their order."""
        columns = [
            (KINDS.index(task.kind), task.stage, task.micro_batch, device)
            for device, row in enumerate(rows)
            for task in row
        ]
        return cls(*np.ascontiguousarray(np.array(columns, dtype=np.int64).reshape(-1, 4).T))

    @classmethod
    def by_turns(cls, passes: Iterable[tuple[str, ArrayLike, ArrayLike, ArrayLike, ArrayLike]]) -> TaskTable:
        """Returns the table of passes in groups, each a kind with arrays of stages, micro-batches, devices, and turns,
        by which each device's passes are ordered; their shapes are broadcast against each other.
        """
        groups = [np.broadcast_arrays(KINDS.index(kind), *arrays) for kind, *arrays in passes]
        kind, stage, batch, device, turn = (
            np.concatenate([a.ravel() for a in part]) for part in zip(*groups, strict=True)
        )
        order = np.lexsort((turn, device))
        return cls(*(column[order].astype(np.int64) for column in (kind, stage, batch, device)))

    @property
    def rows(self) -> tuple[tuple[Task, ...], ...]:
        """Returns the tasks of each device, in their order."""
        ends = np.cumsum(np.bincount(self.device)).tolist()
        tasks = [
            Task(KINDS[kind], stage, batch)
            for kind, stage, batch in zip(*(column.tolist() for column in self[:3]), strict=True)
        ]
        return tuple(tuple(tasks[begin:end]) for begin, end in itertools.pairwise([0, *ends]))

    def task(self, n: int) -> Task:
        """Returns the task in a place of the table."""
        return Task(KINDS[self.kind[n]], int(self.stage[n]), int(self.micro_batch[n]))
