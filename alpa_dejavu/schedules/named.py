"""The schedules by their names."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import final

from alpa_dejavu.problem.checks import count
from alpa_dejavu.problem.run import schedule_form
from alpa_dejavu.schedules._one_chunk import (
    check_interleaved,
    gpipe,
    inference,
    interleaved,
    one_f_one_b,
    overlap_friendly,
    pipedream,
    zb_h1,
)
from alpa_dejavu.schedules._schedule import Schedule
from alpa_dejavu.schedules._v_shaped import check_dualpipe_v, dualpipe_v, v_half, v_min, zb_v

__all__ = ["SCHEDULES", "ScheduleKind", "kind_name", "named_schedule"]


@final
@dataclasses.dataclass(frozen=True)
class ScheduleKind:
    """A kind of schedule: how it is made. Who can run it, `alpa_dejavu.planning.search.runtimes.RUNTIMES` says.

    Attributes:
        make: the generator, from numbers of devices and micro-batches, and of chunks if any number is allowed.
        check: a function that raises ValueError for numbers of devices and micro-batches that it can't have; None: it
            may have any.
    """

    make: Callable[..., Schedule]
    check: Callable[[int, int], None] | None = None


SCHEDULES: dict[str, ScheduleKind] = {
    "1f1b": ScheduleKind(one_f_one_b),
    "1f1b_overlap_friendly": ScheduleKind(overlap_friendly),
    "gpipe": ScheduleKind(gpipe),
    "inference": ScheduleKind(inference),
    "interleaved": ScheduleKind(interleaved, check_interleaved),
    "zb_h1": ScheduleKind(zb_h1),
    "zb_v": ScheduleKind(zb_v),
    "v_half": ScheduleKind(v_half),
    "v_min": ScheduleKind(v_min),
    "dualpipe_v": ScheduleKind(dualpipe_v, check_dualpipe_v),
    "pipedream": ScheduleKind(pipedream),
}
"""All schedules that have a generator, those that Alpa runs first."""


def kind_name(name: str) -> str:
    """Returns the name in `SCHEDULES` of a schedule's kind; "interleaved_3" and the like are of the kind "interleaved".

    Raises:
        ValueError: there is no schedule of that name.
    """
    schedule_form(name)
    return name if name in SCHEDULES else "interleaved"


@functools.lru_cache(maxsize=128)
def named_schedule(name: str, num_stages: int, num_micro_batches: int) -> Schedule:
    """Returns the schedule of a name for a pipeline of S stages; the same question gets the same object.

    Args:
        name: one of `SCHEDULES`; "interleaved_3" and the like have more chunks than the two of "interleaved".
        num_stages: S, the devices times the chunks of each.
        num_micro_batches: B.

    Raises:
        ValueError: there is no schedule of that name, it can't have these micro-batches, or its chunks don't divide
            the stages.

    >>> named_schedule("interleaved", 4, 2).device_of
    (0, 1, 0, 1)
    """
    kind, chunks = SCHEDULES[kind_name(name)], schedule_form(name).chunks
    count("schedule", "num_stages", num_stages)
    count("schedule", "num_micro_batches", num_micro_batches)
    if num_stages % chunks:
        raise ValueError(
            f"num_stages is {num_stages}, but must be a multiple of {chunks}, the chunks of each device in {name}"
        )
    devices = num_stages // chunks
    return kind.make(devices, num_micro_batches, *([chunks] if kind.make is interleaved else []))
