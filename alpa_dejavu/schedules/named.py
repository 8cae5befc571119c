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

__all__ = ["SCHEDULES", "ScheduleKind", "named_schedule", "schedule_kind"]


@final
@dataclasses.dataclass(frozen=True)
class ScheduleKind:
    """A kind of schedule: how it is made, and who can run it.

    Attributes:
        make: the generator, from numbers of devices and micro-batches, and of chunks if any number is allowed.
        runtimes: the training frameworks that can run it, by name, as far as their repositories say.
        check: a function that raises ValueError for numbers of devices and micro-batches that it can't have; None: it
            may have any.
    """

    make: Callable[..., Schedule]
    runtimes: tuple[str, ...] = ()
    check: Callable[[int, int], None] | None = None


SCHEDULES: dict[str, ScheduleKind] = {
    "1f1b": ScheduleKind(
        one_f_one_b, runtimes=("alpa", "megatron", "deepspeed", "galvatron", "torchtitan", "maxtext", "jaxpp")
    ),
    "1f1b_overlap_friendly": ScheduleKind(overlap_friendly, runtimes=("alpa", "jaxpp")),
    "gpipe": ScheduleKind(gpipe, runtimes=("alpa", "galvatron", "torchtitan", "maxtext")),
    "inference": ScheduleKind(inference, runtimes=("alpa",)),
    "interleaved": ScheduleKind(interleaved, runtimes=("megatron", "torchtitan", "jaxpp"), check=check_interleaved),
    "zb_h1": ScheduleKind(zb_h1, runtimes=("torchtitan", "jaxpp")),
    "zb_v": ScheduleKind(zb_v, runtimes=("torchtitan",)),
    "v_half": ScheduleKind(v_half, runtimes=("torchtitan",)),
    "v_min": ScheduleKind(v_min, runtimes=("torchtitan",)),
    "dualpipe_v": ScheduleKind(dualpipe_v, runtimes=("torchtitan", "jaxpp"), check=check_dualpipe_v),
    "pipedream": ScheduleKind(pipedream),
}
"""All schedules that have a generator, those that Alpa runs first."""


def schedule_kind(name: str) -> ScheduleKind:
    """Returns the kind of the schedule of a name; "interleaved_3" and the like are of the kind "interleaved".

    Raises:
        ValueError: there is no schedule of that name.
    """
    schedule_form(name)
    return SCHEDULES[name if name in SCHEDULES else "interleaved"]


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
    kind, chunks = schedule_kind(name), schedule_form(name).chunks
    count("schedule", "num_stages", num_stages)
    count("schedule", "num_micro_batches", num_micro_batches)
    if num_stages % chunks:
        raise ValueError(
            f"num_stages is {num_stages}, but must be a multiple of {chunks}, the chunks of each device in {name}"
        )
    devices = num_stages // chunks
    return kind.make(devices, num_micro_batches, *([chunks] if kind.make is interleaved else []))
