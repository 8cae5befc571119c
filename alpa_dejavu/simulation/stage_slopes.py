"""The derivative of a simulated step by the times of its stages: exact, without simulating again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.schedules import Schedule
from alpa_dejavu.simulation._seconds import stage_seconds, task_entries
from alpa_dejavu.simulation._slopes import slopes
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
    return slopes(tasks, task_entries(tasks), now, ways, at_a_time)
