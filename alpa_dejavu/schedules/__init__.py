"""Pipeline schedules as data: an ordered list of tasks for each device, from a small generator each or from a file.

In: the numbers of devices and micro-batches, or a file. Out: a `Schedule`, checked: nothing is missing or doubled, and
no tasks wait for each other. How long one takes, the simulation says.
"""

from __future__ import annotations

from alpa_dejavu.schedules._checks import unit_ticks
from alpa_dejavu.schedules._schedule import Schedule
from alpa_dejavu.schedules._task import KEPT, KINDS, Task, TaskTable
from alpa_dejavu.schedules.named import SCHEDULES, ScheduleKind, kind_name, named_schedule
from alpa_dejavu.schedules.schedule_file import read_schedule, write_schedule

__all__ = [
    "KEPT", "KINDS", "SCHEDULES", "Schedule", "ScheduleKind", "Task", "TaskTable", "kind_name", "named_schedule",
    "read_schedule", "unit_ticks", "write_schedule",
]  # fmt: skip
