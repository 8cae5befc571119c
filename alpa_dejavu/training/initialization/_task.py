"""The tasks that workers are given, the outcomes that they give back, and the interface of runners."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator
from typing import final

import numpy as np

from alpa_dejavu.training.initialization._layout import FloatArray, Leaves


@final
@dataclasses.dataclass(frozen=True)
class Task:
    """A task for a worker: some steps of a few candidates, side by side.

    Attributes:
        numbers: of the candidates, at most as many as there are lanes.
        width: so many lanes the program has; the rest of them repeat the last candidate.
        first_step: where they are, counted from 0.
        num_steps: how many steps they take.
        batch_rows: so many rows of each batch they take; None: all.
        is_measure: nothing is trained: each step's loss is that of the states as they are.
    """

    numbers: tuple[int, ...]
    width: int
    first_step: int
    num_steps: int
    batch_rows: int | None = None
    is_measure: bool = False


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """The outcome of a task: the candidates' new states, and the losses and norms of its steps.

    Attributes:
        task: the one that was done.
        states: leaves of shape (N, ...), N the task's candidates; () if they were lost.
        losses: shape (N, steps).
        gradients: shape (N, steps), norms of gradients; NaN where the training step doesn't say them.
        weights: shape (N, steps), norms of the parameters after each step.
        lost: why there is no outcome, or "".
    """

    task: Task
    states: Leaves
    losses: FloatArray
    gradients: FloatArray
    weights: FloatArray
    lost: str = ""

    @classmethod
    def of_nothing(cls, task: Task, why: str) -> Outcome:
        """Returns the outcome of a task that is lost."""
        nothing = np.zeros((len(task.numbers), 0))
        return cls(task, (), nothing, nothing, nothing, why)


class Runner(abc.ABC):
    """A runner, which has workers do tasks."""

    restarts: int = 0
    """So many tasks were begun again, because their worker had died."""

    def fitting(self, lanes: int, memory_bytes: float | None) -> tuple[int, str]:
        """Returns how many candidates fit side by side wherever tasks are done, and a note: see `fitting_lanes`."""
        return lanes, ""

    @abc.abstractmethod
    def outcomes(self, next_task: Callable[[], Task | None]) -> Iterator[Outcome]:
        """Asks for a task whenever a worker is free, and yields outcomes as they come.

        What an outcome is followed by may be known only once it was given, so a free worker asks again after each. It
        ends when nothing is being done and there is no task.
        """
