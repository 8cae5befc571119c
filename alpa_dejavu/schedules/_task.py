"""One task of a pipeline's device: a pass of a stage for a micro-batch."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["BACKWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT", "FORWARD", "KINDS", "Task"]

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = KINDS = ("F", "B", "I", "W")
"""A forward, a whole backward, and its two parts: by the stage's input, which the stage before waits for, and by its
weights, which can wait. They are the letters of PyTorch's schedules."""
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
    def of(cls, given: Task | str) -> Task:
        """Returns the task that a text such as "2F0" (stage 2, forward, micro-batch 0) names, or the given task.

        Raises:
            ValueError: the text isn't of that form.
        """
        if isinstance(given, Task):
            return given
        found = _CELL.fullmatch(given)
        if found is None or found[2] not in KINDS:
            kinds = ", ".join(KINDS)
            raise ValueError(f"task is {given!r}, but must be a stage, one of {kinds}, and a micro-batch, such as 2F0")
        return cls(found[2], int(found[1]), int(found[3]))
