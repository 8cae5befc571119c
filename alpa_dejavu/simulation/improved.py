"""Improves a schedule for stages that are unlike: moves tasks along critical paths, and says how far from optimal it
may be.

The generators' orders are made for stages alike. Here backward passes are split, and a pass of a device that is on the
critical path and could go later, or earlier, is moved there, whatever makes the simulated step shortest, also if no
move makes it shorter; moves that would undo the last ones are left out for a while.

References:
    Nowicki and Smutnicki, A Fast Taboo Search Algorithm for the Job Shop Problem, Management Science 1996.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import final

import numpy as np

from alpa_dejavu.problem import checks
from alpa_dejavu.schedules import Schedule, Task, TaskTable, unit_ticks
from alpa_dejavu.simulation._clock import own_devices
from alpa_dejavu.simulation._greedy import activation_room, fits, greedy_orders, step_floor
from alpa_dejavu.simulation._program import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, program_of
from alpa_dejavu.simulation._stage_times import stage_seconds, task_entries
from alpa_dejavu.simulation.step import SENDS, StageTimes, step_seconds

__all__ = ["ImprovedSchedule", "improved_schedule"]

_TABU, _PATIENCE = 12, 60
"""A swap isn't undone for so many moves; the search ends after so many without a shorter step."""
_TIE = 1e-9


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ImprovedSchedule:
    """A schedule with its simulated step, that of the best schedule before, and a bound for any order of tasks.

    Attributes:
        schedule: the order of tasks; backward passes are split.
        step_s: the seconds of its simulated step.
        begun_s: those of the best schedule that it began with.
        floor_s: no order of tasks on these devices has a shorter step.
    """

    schedule: Schedule
    step_s: float
    begun_s: float
    floor_s: float

    @property
    def gap(self) -> float:
        """Returns by how much at most the step exceeds the shortest one, as a share of the bound."""
        return 0.0 if self.step_s == self.floor_s else self.step_s / self.floor_s - 1


def improved_schedule(
    stages: Sequence[StageTimes], begin: Sequence[Schedule], *, sends: str = "overlapped", most_tries: int = 4000
) -> ImprovedSchedule:
    """Returns a schedule whose simulated step is no longer than that of the best of some schedules.

    The search also begins with orders in which each device does, at any time, what is there to be done. No schedule
    takes more than each device's memory, by the bytes of the stages; only schedules that fit are begun with.

    Args:
        stages: the times and bytes of the S stages.
        begin: schedules of S stages, all with the same stages on each device and as many micro-batches.
        sends: how transfers go, as `simulate` takes it: "overlapped", "buffered" or "blocking".
        most_tries: how many orders are simulated at most.

    Raises:
        ValueError: there are no schedules, they differ in stages, devices or micro-batches, only infer, update the
            weights after each micro-batch, or none fits into memory.
    """
    stages, first = tuple(stages), _checked(begin)
    checks.one_of("improved schedule", "sends", sends, SENDS)
    size = first.num_micro_batches
    search = _TabuSearch(stages, first.device_of, size, sends, most_tries)
    split = {schedule: _split(schedule) for schedule in begin}
    fitting = [schedule for schedule, table in split.items() if search.fits(table)]
    steps = {schedule: step_seconds(stages, size, schedule, sends) for schedule in fitting}
    if not steps:
        raise ValueError(
            "no schedule that is given fits into the memory of its devices; give one that keeps less, such as v_min"
        )
    best = min(steps, key=lambda schedule: steps[schedule])
    begun_s = steps[best]
    orders = [split[best], *greedy_orders(stages, first.device_of, size)]
    improved_s, improved = min((search.best_from(order) for order in orders), key=lambda result: result[0])
    floor_s = min(search.floor_s, improved_s)  # sums round otherwise than ends do
    if improved_s >= begun_s * (1 - _TIE):
        return ImprovedSchedule(best, begun_s, begun_s, floor_s)
    return ImprovedSchedule(Schedule("improved", improved), improved_s, begun_s, floor_s)


def _checked(begin: Sequence[Schedule]) -> Schedule:
    if not begin:
        raise ValueError("improved schedule: there are no schedules to begin with; give at least one")
    first = begin[0]
    for schedule in begin:
        if (schedule.device_of, schedule.num_micro_batches) != (first.device_of, first.num_micro_batches):
            raise ValueError(
                f"schedules {first.name} and {schedule.name} have other stages on their devices, or other numbers of "
                "micro-batches; give such that differ in their order alone"
            )
        if schedule.updates_each or not schedule.trains:
            raise ValueError(
                f"schedule {schedule.name} only infers, or updates the weights after each micro-batch; give one that "
                "updates them once a step"
            )
    return first


def _split(schedule: Schedule) -> TaskTable:
    """A schedule's tasks with each backward pass split, its two parts one right after the other."""

    def parts(task: Task) -> Iterable[Task]:
        return [task._replace(kind="I"), task._replace(kind="W")] if task.kind == "B" else [task]

    return TaskTable.of([[part for task in row for part in parts(task)] for row in schedule.tasks])


@final
class _TabuSearch:
    """A tabu search over orders of tasks on each device; it counts the orders that it has simulated."""

    def __init__(
        self, stages: tuple[StageTimes, ...], device_of: Sequence[int], size: int, sends: str, most_tries: int
    ) -> None:
        self._stages, self._device_of, self._size, self._sends = stages, device_of, size, sends
        self._takes_time = np.array(
            [[s.forward_send_s > 0 for s in stages], [s.backward_send_s > 0 for s in stages]], dtype=np.bool_
        )
        self._begins = np.array([stage.start_s > 0 for stage in stages], dtype=np.bool_)
        self._taken = stage_seconds(stages, trains=True)
        self._left, self.floor_s = most_tries, step_floor(stages, device_of, size)
        self._room = activation_room(stages, device_of)
        self._each = np.array([stage.activation_bytes for stage in stages])

    def fits(self, table: TaskTable) -> bool:
        return fits(table, self._each, self._room)

    def best_from(self, table: TaskTable) -> tuple[float, TaskTable]:
        """Returns the shortest step, and its order, that moves from an order lead to; infinite where it doesn't run."""
        now = self._tried(table)
        if now is None:
            return np.inf, table
        best_s, best = now[0], table
        forbidden: deque[tuple[int, int]] = deque(maxlen=_TABU)
        stale = 0
        while stale < _PATIENCE and self._left > 0 and best_s > self.floor_s * (1 + _TIE):
            tried = []
            for move in _moves(table, now[1]):
                task, other = move
                if (_named(table, other), _named(table, task)) in forbidden:
                    continue
                moved = _moved(table, *move)
                if self.fits(moved) and (simulated := self._tried(moved)) is not None:
                    tried.append((simulated[0], move, moved, simulated))
            if not tried:
                break
            step_s, move, moved, simulated = min(tried, key=lambda result: result[:2])
            forbidden.append((_named(table, move[0]), _named(table, move[1])))
            table, now = moved, simulated
            stale += 1
            if step_s < best_s * (1 - _TIE):
                best_s, best, stale = step_s, moved, 0
        return best_s, best

    def _tried(self, table: TaskTable) -> tuple[float, list[int]] | None:
        """Returns the seconds of a step and the tasks of `table` on a critical path, in order; None at a deadlock."""
        self._left -= 1
        ticks = unit_ticks(table, len(self._stages), self._size)
        if (ticks < 0).any():
            return None
        program, which = program_of(
            table, ticks, self._device_of, self._size, self._sends, self._takes_time, self._begins
        )
        starts, ends = own_devices(program, self._taken[task_entries(program)])
        computes = np.isin(program.kind, _COMPUTES)
        place = np.full(len(program), -1)
        place[computes] = which
        n, path = int(ends.argmax()), []
        while n >= 0:
            if place[n] >= 0:
                path.append(int(place[n]))
            before = [int(m) for m in program.waits[:, n] if m >= 0 and ends[m] >= starts[n] * (1 - _TIE)]
            n = max(before, default=-1) if starts[n] > 0 else -1
        return float(ends.max()), path[::-1]


_COMPUTES = np.array([FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT])


def _moves(table: TaskTable, path: list[int]) -> Iterator[tuple[int, int]]:
    """Yields pairs of places of tasks on one device, of which the first may go right behind the second, or the second
    right before the first: at the begin and the end of each row of tasks on a critical path that a device does one
    after the other.
    """
    blocks: list[list[int]] = []
    for n in path:
        if blocks and n == blocks[-1][-1] + 1 and table.device[n] == table.device[n - 1]:
            blocks[-1].append(n)
        else:
            blocks.append([n])
    for block in blocks:
        if len(block) > 1:
            yield from dict.fromkeys(
                [(block[0], block[1]), (block[-2], block[-1]), (block[-1], block[0]), (block[0], block[-1])]
            )


def _moved(table: TaskTable, task: int, other: int) -> TaskTable:
    """The table with a task moved to another's place, those between closing up."""
    first, last = sorted((task, other))
    order = np.arange(first, last + 1)
    order = np.roll(order, -1 if task < other else 1)
    columns = [column.copy() for column in table]
    for column in columns:
        column[first : last + 1] = column[order]
    return TaskTable(*columns)


def _named(table: TaskTable, n: int) -> int:
    """A number for a task, wherever it stands."""
    return int((table.kind[n] * 10_000 + table.stage[n]) * 100_000 + table.micro_batch[n])
