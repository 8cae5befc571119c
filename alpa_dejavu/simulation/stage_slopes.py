"""The derivative of a simulated step by the times of its stages: exact, without simulating again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.schedules import Schedule
from alpa_dejavu.simulation._clock import own_devices
from alpa_dejavu.simulation._program import StepProgram
from alpa_dejavu.simulation._stage_times import stage_seconds, task_entries
from alpa_dejavu.simulation.step import StageTimes, schedule_of, step_program

__all__ = ["step_slopes"]


def step_slopes(
    stages: Sequence[StageTimes],
    num_micro_batches: int,
    schedule: str | Schedule = "1f1b",
    *,
    changed: Sequence[Sequence[StageTimes]],
    sends: str | None = None,
    at_a_time: int = 1 << 24,
) -> NDArray[np.float64]:
    """Returns the derivatives of a step's seconds as its stages' times begin to change towards K other sets of times.

    A step is the longest path through the graph of its tasks, so it is convex and piecewise linear in their seconds,
    and its derivative along a direction is what that changes on the critical path. Stages that are alike make many
    paths critical at a time: the derivative is then another one forwards and backwards, and one stage alone that
    becomes faster helps nothing.

    Args:
        stages: the present times of each stage, in the order of the layers.
        num_micro_batches: how many micro-batches the step has.
        schedule: a schedule, or its name, as `simulate` takes it.
        changed: K lists of the stages with other times; a transfer that takes no time at present isn't added.
        sends: how transfers go, as `simulate` takes it: "blocking", "buffered", "overlapped" or None.
        at_a_time: the most numbers that are kept in memory at a time.

    Returns:
        Shape (K,): with x the present times and y the changed ones, the derivative of the step's seconds at
        x + t (y - x) by t, at t = 0 from above.

    Raises:
        ValueError: no stages, an unknown schedule or way of sending, or `changed` has more or fewer stages.

    References:
        Danskin, The Theory of Max-Min, 1967: the derivative of a maximum along a direction.

    >>> slow, fast = StageTimes(2.0, 4.0), StageTimes(1.0, 2.0)
    >>> quicker = StageTimes(0.0, 0.0)
    >>> step_slopes([fast, slow], 4, changed=[[quicker, slow], [fast, quicker]]).tolist()
    [-3.0, -24.0]
    """
    order = schedule_of(stages, num_micro_batches, schedule)
    tasks = step_program(stages, num_micro_batches, order, sends)
    trains = order.trains
    now = stage_seconds(stages, trains)
    for others in changed:
        if len(others) != len(stages):
            raise ValueError(f"step_slopes: {len(others)} changed stages are given for {len(stages)}; give as many")
    ways = np.array([stage_seconds(others, trains) - now for others in changed]).reshape(len(changed), len(now))
    return _slopes_along(tasks, task_entries(tasks), now, ways, at_a_time)


FloatArray = NDArray[np.float64]
_TIE = 1e-9
"""Paths whose lengths differ by no more than this share of the longest are equally long: additions round."""


def _slopes_along(
    tasks: StepProgram, entries: NDArray[np.int64], seconds: FloatArray, changes: FloatArray, at_a_time: int
) -> FloatArray:
    """The derivative of a step's seconds along each of K changes of the tasks' seconds, shape (K,), where the N tasks
    take `seconds[entries]`, of shapes (R,) and (N,), and `changes`, shape (K, R), are what a unit along each direction
    adds.

    The step is the length of the longest path through the graph of tasks. Where several are equally long, the one that
    grows most, or shrinks least, decides: the derivative holds for going along the direction, not for going back.
    """
    starts, ends = own_devices(tasks, seconds[entries])
    critical = _critical(tasks, starts, ends)
    width = max(1, at_a_time // max(len(critical), 1))
    rows = entries.tolist()
    parts = [changes[first : first + width] for first in range(0, len(changes), width)]
    of_parts = [_longest(critical, rows, np.ascontiguousarray(part.T)) for part in parts]
    return np.concatenate(of_parts) if of_parts else np.zeros(0)


def _critical(tasks: StepProgram, starts: FloatArray, ends: FloatArray) -> list[tuple[int, list[int], bool]]:
    """The tasks on critical paths, in order: its number, those it comes right after, and if it is an end."""
    last = float(ends.max())
    slack = _TIE * last
    is_end = (ends >= last - slack).tolist()
    wanted, began, ended = list(is_end), starts.tolist(), ends.tolist()
    waits = tasks.waits.T.tolist()
    critical = []
    for n in range(len(tasks) - 1, -1, -1):
        if wanted[n]:
            before = [m for m in dict.fromkeys(waits[n]) if m >= 0 and began[n] - ended[m] <= slack]
            for m in before:
                wanted[m] = True
            critical.append((n, before, is_end[n]))
    return critical[::-1]


def _longest(critical: list[tuple[int, list[int], bool]], rows: list[int], changes: FloatArray) -> FloatArray:
    """The largest change of a critical path, for each column of `changes`."""
    reached: dict[int, FloatArray] = {}
    best = np.full(changes.shape[1], -np.inf)
    nothing = np.zeros(changes.shape[1])
    for n, before, is_end in critical:
        longest = reached[before[0]] if before else nothing
        for m in before[1:]:
            longest = np.maximum(longest, reached[m])
        reached[n] = longest + changes[rows[n]]
        if is_end:
            np.maximum(best, reached[n], out=best)
    return best
