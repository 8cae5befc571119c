"""A schedule as data: which task each device of a pipeline does after which."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.schedules._checks import check_complete, check_devices, stuck, unit_ticks
from alpa_dejavu.schedules._task import BACKWARD_WEIGHT, KEPT, KINDS, Task, TaskTable

__all__ = ["Schedule"]


_KEPT = np.array([KEPT[kind] for kind in KINDS])


@final
class Schedule:
    """A pipeline schedule: an ordered list of tasks for each device, where a device stands for a whole submesh.

    A device may have several stages (chunks of the model), and does one task at a time, in the order of its list. A
    task begins once what it needs is there: a forward needs the micro-batch's forward of the stage before; a backward
    needs the same stage's forward and the backward of the stage behind; a backward by weights needs the backward by
    inputs.

    Args:
        name: the schedule's name, for people.
        tasks: for each device its tasks, in the order in which it does them, or a table of them.
        updates_each: whether the optimizer updates the weights after each micro-batch's backward, so that the weights
            of its forward are stashed until then, as PipeDream does; if not, once all micro-batches are done.

    Raises ValueError for a task that is missing, doubled or on two devices, for a stage on no device, and for tasks
    that wait for each other.

    >>> schedule = Schedule("by hand", (("0F0", "0F1", "0B0", "0B1"), ("1F0", "1B0", "1F1", "1B1")))
    >>> schedule.num_stages, schedule.num_micro_batches, schedule.peak_in_flight.tolist()
    (2, 2, [2, 1])
    """

    def __init__(
        self, name: str, tasks: TaskTable | Sequence[Sequence[Task | str]], updates_each: bool = False
    ) -> None:
        if not isinstance(tasks, TaskTable):
            check_devices(name, tasks)
            tasks = TaskTable.of([map(Task.of, row) for row in tasks])
        self.name, self.table, self.updates_each = name, tasks, updates_each
        check_complete(name, tasks)
        if (self.ticks < 0).any():
            waiting = stuck(self.table, self.ticks)
            raise ValueError(
                f"schedule {self.name}: it can't go on, since {waiting}; order each device's tasks so that what a task "
                "needs is done before it"
            )

    @functools.cached_property
    def tasks(self) -> tuple[tuple[Task, ...], ...]:
        """Returns for each device its tasks, in the order in which it does them."""
        return self.table.rows

    @functools.cached_property
    def num_devices(self) -> int:
        """Returns the number of devices (submeshes) that the pipeline runs on."""
        return 1 + int(self.table.device.max())

    @functools.cached_property
    def num_stages(self) -> int:
        """Returns the number of stages of the pipeline, S: the devices times the chunks of each."""
        return 1 + int(self.table.stage.max())

    @functools.cached_property
    def num_micro_batches(self) -> int:
        """Returns the number of micro-batches of a step, B."""
        return 1 + int(self.table.micro_batch.max())

    @functools.cached_property
    def device_of(self) -> tuple[int, ...]:
        """Returns for each of S stages the index of its device."""
        devices = np.zeros(self.num_stages, dtype=np.int64)
        devices[self.table.stage] = self.table.device
        return tuple(devices.tolist())

    @property
    def chunks(self) -> int:
        """Returns the most stages that a device has."""
        return max(map(len, self.stages_on))

    @functools.cached_property
    def trains(self) -> bool:
        """Returns whether there are backward passes: a schedule without any only infers."""
        return bool(self.table.kind.any())

    @functools.cached_property
    def splits(self) -> bool:
        """Returns whether the backward by weights is a task of its own somewhere."""
        return bool((self.table.kind == KINDS.index(BACKWARD_WEIGHT)).any())

    @functools.cached_property
    def ticks(self) -> NDArray[np.int64]:
        """Returns the tick at which each of N tasks of `table` runs if each takes one and none waits needlessly."""
        return unit_ticks(self.table, self.num_stages, self.num_micro_batches)

    @functools.cached_property
    def last_gradients(self) -> tuple[int, ...]:
        """Returns for each of S stages the micro-batch whose gradients of the weights come last; empty in inference."""
        gradients, last = _KEPT[self.table.kind] < 0, np.zeros(self.num_stages, dtype=np.int64)
        last[self.table.stage[gradients]] = self.table.micro_batch[gradients]
        return tuple(last.tolist()) if self.trains else ()

    @functools.cached_property
    def stages_on(self) -> tuple[tuple[int, ...], ...]:
        """Returns the stages that each device has, in order."""
        return tuple(
            tuple(stage for stage, device in enumerate(self.device_of) if device == own)
            for own in range(self.num_devices)
        )

    @functools.cached_property
    def peak_in_flight(self) -> NDArray[np.int64]:
        """Returns the most micro-batches whose activations each stage keeps at a time, shape (S,): from a forward until
        its backward, or, where that is split, its backward by weights, is done; 0 in inference.
        """
        return np.array([int(self.in_flight([stage]).max()) for stage in range(self.num_stages)])

    @functools.cached_property
    def peak_chunks(self) -> NDArray[np.int64]:
        """Returns the most activations, each of a stage and micro-batch, that each of D devices keeps; shape (D,)."""
        return np.array([int(self.in_flight(stages).max()) for stages in self.stages_on])

    def in_flight(self, stages: Sequence[int]) -> NDArray[np.int64]:
        """Returns how many activations the given stages of one device keep after each task of its list."""
        if not self.trains:
            return np.zeros(1, dtype=np.int64)
        on_device = self.table.device == self.device_of[stages[0]]
        kind, stage = self.table.kind[on_device], self.table.stage[on_device]
        return np.cumsum(np.where(np.isin(stage, stages), _KEPT[kind], 0))
