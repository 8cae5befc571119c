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
    """A task for a worker: to train (or measure) a few candidates side by side for some steps.

    Attributes:
        numbers: the candidates' numbers, `width` at most.
        width: for how many candidates the program is compiled; places left over repeat the last candidate.
        first_step: the step that the candidates are at, counted from 0.
        num_steps: how many steps they take.
        batch_rows: how many rows of each batch they take; None: all.
        rates: the candidates' learning rates; (): they carry none.
        is_measure: whether nothing is trained: each step's loss is then that of the states as they are.
    """

    numbers: tuple[int, ...]
    width: int
    first_step: int
    num_steps: int
    batch_rows: int | None = None
    rates: tuple[float, ...] = ()
    is_measure: bool = False


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """The outcome of a training task: the candidates' new states, and the losses and norms of each step.

    Attributes:
        task: the task that was done.
        states: leaves of shape (N, ...), for the task's N candidates; () if they were lost.
        losses: shape (N, steps), the loss of each step.
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
        """Returns the empty outcome of a training task that was lost, with the reason."""
        nothing = np.zeros((len(task.numbers), 0))
        return cls(task, (), nothing, nothing, nothing, why)


class Runner(abc.ABC):
    """An interface of runners, which have the tasks of training candidates done, by workers or in this process."""

    restarts: int = 0
    """So many tasks were begun again, because their worker had died."""

    def fitting(self, lanes: int, memory_bytes: float | None) -> tuple[int, str]:
        """Returns how many candidates (`lanes` at most) fit into memory side by side wherever tasks are done, and a
        note if it is fewer.
        """
        return lanes, ""

    @abc.abstractmethod
    def outcomes(self, next_task: Callable[[], Task | None]) -> Iterator[Outcome]:
        """Asks `next_task` for a training task whenever a worker is free, and yields each task's outcome as it
        comes.

        Which task is next may be known only after an outcome was yielded, so a free worker asks again after each one.
        The iteration ends when no task is being done and there is no other.
        """
