"""The schedules by their names."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import final

from alpa_dejavu.problem.checks import count
from alpa_dejavu.schedules import _one_chunk as one
from alpa_dejavu.schedules._dual_pipe import dualpipe_v
from alpa_dejavu.schedules._interleaved import interleaved
from alpa_dejavu.schedules._schedule import Schedule
from alpa_dejavu.schedules._v_shaped import v_half, v_min, zb_v

__all__ = ["SCHEDULES", "ScheduleKind", "named_schedule"]


@final
@dataclasses.dataclass(frozen=True)
class ScheduleKind:
    """A kind of schedule: how it is made, and how many chunks of the model a device has in it.

    Attributes:
        make: the generator, from numbers of devices and micro-batches, and of chunks if any number is allowed.
        chunks: the stages of each device; None: any number from 2 on.
        runtimes: the training frameworks that can run it, by name, as far as their repositories say.
    """

    make: Callable[..., Schedule]
    chunks: int | None = 1
    runtimes: tuple[str, ...] = ()


SCHEDULES: dict[str, ScheduleKind] = {
    "1f1b": ScheduleKind(
        one.one_f_one_b, runtimes=("alpa", "megatron", "deepspeed", "galvatron", "torchtitan", "jaxpp")
    ),
    "1f1b_overlap_friendly": ScheduleKind(one.overlap_friendly, runtimes=("alpa", "jaxpp")),
    "gpipe": ScheduleKind(one.gpipe, runtimes=("alpa", "galvatron", "torchtitan")),
    "inference": ScheduleKind(one.inference, runtimes=("alpa",)),
    "interleaved": ScheduleKind(interleaved, chunks=None, runtimes=("megatron", "torchtitan", "jaxpp")),
    "zb_h1": ScheduleKind(one.zb_h1, runtimes=("torchtitan", "jaxpp")),
    "zb_v": ScheduleKind(zb_v, chunks=2, runtimes=("torchtitan",)),
    "v_half": ScheduleKind(v_half, chunks=2, runtimes=("torchtitan",)),
    "v_min": ScheduleKind(v_min, chunks=2, runtimes=("torchtitan",)),
    "dualpipe_v": ScheduleKind(dualpipe_v, chunks=2, runtimes=("torchtitan", "jaxpp")),
    "pipedream": ScheduleKind(one.pipedream),
}
"""All schedules that have a generator, those that Alpa runs first."""


@functools.lru_cache(maxsize=128)
def named_schedule(name: str, num_stages: int, num_micro_batches: int, chunks: int | None = None) -> Schedule:
    """Returns the schedule of a name for a pipeline of S stages; the same question gets the same object.

    Args:
        name: one of `SCHEDULES`.
        num_stages: S, the devices times the chunks of each.
        num_micro_batches: B.
        chunks: the stages of each device; None: as many as the schedule has, and 2 where it may have any number.

    Raises:
        ValueError: there is no schedule of that name, it can't have these chunks or micro-batches, or the chunks don't
            divide the stages.

    >>> named_schedule("interleaved", 4, 2).device_of
    (0, 1, 0, 1)
    """
    if name not in SCHEDULES:
        raise ValueError(f"schedule is {name!r}, but must be one of {', '.join(map(repr, SCHEDULES))}")
    kind = SCHEDULES[name]
    count("schedule", "num_stages", num_stages)
    count("schedule", "num_micro_batches", num_micro_batches)
    if kind.chunks is not None and chunks not in (None, kind.chunks):
        raise ValueError(f"chunks is {chunks}, but must be {kind.chunks} in {name}; leave it out, or take interleaved")
    if kind.chunks is None and chunks is not None and chunks < 2:
        raise ValueError(f"chunks is {chunks}, but must be at least 2 in {name}; with one it is 1f1b")
    each = kind.chunks or chunks or 2
    if num_stages % each:
        raise ValueError(
            f"num_stages is {num_stages}, but must be a multiple of {each}, the chunks of each device in {name}"
        )
    devices = num_stages // each
    return kind.make(devices, num_micro_batches, each) if kind.chunks is None else kind.make(devices, num_micro_batches)
