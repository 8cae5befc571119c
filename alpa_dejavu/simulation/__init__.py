"""The schedule of a step as events on stages and links: its time, its timeline, and its memory over time.

In: the seconds and bytes of each stage (`StageTimes`), a number of micro-batches, and a schedule.
Out: a `Timeline`, and the derivatives of the step by what it was made from; and better orders of tasks.
Alpa's closed form leaves transfers out and is exact for equal stages alone; the simulation is what plans are ranked by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu._util.lazy import loaded_when_used

if TYPE_CHECKING:
    from alpa_dejavu.simulation.improved import improved_schedule
    from alpa_dejavu.simulation.sensitivity import sensitivities
    from alpa_dejavu.simulation.stage_slopes import step_slopes
    from alpa_dejavu.simulation.step import StageTimes, Timeline, simulate, step_seconds

__all__ = [
    "StageTimes",
    "Timeline",
    "improved_schedule",
    "sensitivities",
    "simulate",
    "step_seconds",
    "step_slopes",
]

_HOME = {
    "improved_schedule": "improved",
    "sensitivities": "sensitivity",
    "step_slopes": "stage_slopes",
    "StageTimes": "step",
    "Timeline": "step",
    "simulate": "step",
    "step_seconds": "step",
}

__getattr__, __dir__ = loaded_when_used(__name__, _HOME)
