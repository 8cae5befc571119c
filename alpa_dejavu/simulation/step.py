"""A plan's step as events on stages and links: its time, its timeline, and its memory over time.

Alpa's formula for the time of a step leaves transfers out, and is exact for stages alike only. Here each task of the
schedule starts when the tasks that it waits for have ended, in the order in which Alpa's runtime has them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import checks
from alpa_dejavu.schedules import Schedule, named_schedule
from alpa_dejavu.simulation._clock import own_devices, shared_cores
from alpa_dejavu.simulation._events import KINDS, Event, Track
from alpa_dejavu.simulation._program import BACKWARD_INPUT, BACKWARD_WEIGHT, SENDS, UPDATE, StepProgram, program
from alpa_dejavu.simulation._stage_times import StageTimes, stage_seconds, task_entries
from alpa_dejavu.simulation._timeline import Timeline

_BLOCKING = ("1f1b", "gpipe", "inference")
_STEADY = ("1f1b", "1f1b_overlap_friendly", "zb_h1", "inference")
"""The schedules in which each device does the same in turns between a pipeline's filling and its draining."""
_FEW, _SAME = 8, 1e-11
"""So many micro-batches to a stage are simulated before a pipeline is asked whether it is steady: whether each one ends
as long after the one before it as others do, but for this share of the step."""

__all__ = [
    "KINDS", "SENDS", "Event", "StageTimes", "StepProgram", "Timeline", "Track", "schedule_of", "sending", "simulate",
    "step_program", "step_seconds",
]  # fmt: skip


def simulate(
    stages: Sequence[StageTimes],
    num_micro_batches: int,
    schedule: str | Schedule = "1f1b",
    *,
    sends: str | None = None,
    cores: float | None = None,
    waiting: float = 0.0,
) -> Timeline:
    """Simulates one step of a pipeline under a schedule, and returns its timeline.

    Args:
        stages: the times of each stage, in the order of the layers.
        num_micro_batches: how many micro-batches the step has, B.
        schedule: the name of one of `alpa_dejavu.schedules.SCHEDULES`, or a schedule for as many stages and
            micro-batches. Stages of one device take turns on it.
        sends: how a transfer goes. "blocking": sender and receiver meet, and both wait until it is done, as NCCL does
            on the stream that computes. "buffered": the sender goes on once it has posted, and the receiver
            waits for its mailbox, as on CPU clusters. "overlapped": both compute meanwhile. None: as `sending` says for
            the stages.
        cores: if all devices share the cores of one CPU, how many there are; the stages' seconds are then those of a
            device that has a core for itself. None: each device has its own.
        waiting: the share of its time that a device waits for others of its process, where devices share cores.

    Returns:
        The timeline. Without transfers and with S stages alike its `step_s` is the closed form S * c + (B - 1) * c,
        where c is forward plus backward, plus what comes once a step.

    Raises:
        ValueError: no stages, an unknown schedule or way of sending, a schedule for other numbers of stages or
            micro-batches, or numbers below what they can be.

    References:
        Alpa 0.2.3, alpa/pipeline_parallel/schedules.py and runtime_emitter.py, whose order of tasks it is.

    >>> simulate([StageTimes(1.0, 2.0)] * 4, num_micro_batches=8).step_s
    33.0
    """
    stages = tuple(stages)
    order = schedule_of(stages, num_micro_batches, schedule)
    sends = sending(order.name, stages) if sends is None else sends
    tasks = step_program(stages, num_micro_batches, order, sends)
    starts, ends = _run(tasks, stages, _seconds(tasks, stages, order), cores, waiting)
    forward, backward, ahead, back, update, by_input, by_weight = (
        _spans(tasks, kind, order, starts, ends) for kind in (*range(UPDATE + 1), BACKWARD_INPUT, BACKWARD_WEIGHT)
    )
    backward = np.where(np.isnan(backward), by_input, backward)
    step_s, blocking = float(ends.max()), sends == "blocking"
    updates = update if order.updates_each else update[:, :1]
    return Timeline(stages, order, blocking, step_s, forward, backward, ahead, back, updates, by_weight)


def step_seconds(
    stages: Sequence[StageTimes], num_micro_batches: int, schedule: str | Schedule = "1f1b", sends: str | None = None
) -> float:
    """Returns the simulated seconds of a pipeline's step without making its timeline. It takes what `simulate` takes;
    each device computes on cores of its own.

    Tasks wait for others that are a few turns before them, so that a pipeline that was steady for some turns stays so
    until it drains: of many micro-batches few are simulated, and the others take as long as one in the steady state.

    Raises:
        ValueError: as `simulate` says.

    References:
        Baccelli, Cohen, Olsder and Quadrat, Synchronization and Linearity, Wiley 1992: periodic regimes of such graphs.
    """
    stages = tuple(stages)
    few = _FEW * len(stages)
    while schedule in _STEADY and 2 * few <= num_micro_batches:
        step_s, more_s = _steady(stages, few, str(schedule), sends)
        if more_s is not None:
            return step_s + (num_micro_batches - few) * more_s
        few *= 4
    order = schedule_of(stages, num_micro_batches, schedule)
    tasks = step_program(stages, num_micro_batches, order, sends)
    return float(own_devices(tasks, _seconds(tasks, stages, order))[1].max())


def _steady(stages: tuple[StageTimes, ...], size: int, schedule: str, sends: str | None) -> tuple[float, float | None]:
    """Returns the step of so many micro-batches, and what one more takes; None where the pipeline isn't steady."""
    order = schedule_of(stages, size, schedule)
    tasks = step_program(stages, size, order, sends)
    ends = own_devices(tasks, _seconds(tasks, stages, order))[1]
    table = np.full((int(tasks.kind.max()) + 1, len(stages), size), np.nan)
    table[tasks.kind, tasks.stage, tasks.micro_batch] = ends
    # No device runs more than twice as many micro-batches ahead as there are stages.
    turns = np.diff(table[..., -5 * len(stages) - 1 : -2 * len(stages)])
    turns = turns[np.isfinite(turns).all(axis=2)]
    step_s, least, most = float(ends.max()), float(turns.min()), float(turns.max())
    return step_s, (least + most) / 2 if most - least <= _SAME * step_s / size else None


def step_program(
    stages: Sequence[StageTimes], num_micro_batches: int, schedule: str | Schedule = "1f1b", sends: str | None = None
) -> StepProgram:
    """Returns the tasks (forwards, backwards, transfers, ...) of a pipeline's step, and which of them wait for which.
    It takes what `simulate` takes; of the stages' times it only matters whether transfers and starts take any.

    Raises:
        ValueError: as `simulate` says.
    """
    order = schedule_of(stages, num_micro_batches, schedule)
    sends = sending(order.name, stages) if sends is None else sends
    checks.one_of("simulate", "sends", sends, SENDS)
    names = ("forward_send_s", "backward_send_s", "start_s")
    takes_time = [tuple(getattr(stage, name) > 0 for stage in stages) for name in names]
    return program(order, sends, *takes_time)


def schedule_of(stages: Sequence[StageTimes], num_micro_batches: int, schedule: str | Schedule) -> Schedule:
    """Returns the schedule that is given or named, checked against the numbers of stages and micro-batches.

    Raises:
        ValueError: there are no stages, no schedule of that name, or it is for other numbers.
    """
    if not stages:
        raise ValueError("simulate: there are no stages; a plan has at least one")
    if isinstance(schedule, str):
        return named_schedule(schedule, len(stages), num_micro_batches)
    wanted, has = (len(stages), num_micro_batches), (schedule.num_stages, schedule.num_micro_batches)
    if wanted != has:
        raise ValueError(
            f"schedule {schedule.name} has {has[0]} stages and {has[1]} micro-batches, but {wanted[0]} and {wanted[1]} "
            "are given; make the schedule for these"
        )
    return schedule


def sending(schedule: str, stages: Sequence[StageTimes] = ()) -> str:
    """Returns how tensors go from stage to stage by default in a pipeline schedule of this name: "blocking" (both
    stages wait) in "1f1b", "gpipe" and "inference", as Alpa has them; "overlapped" (both compute meanwhile) in any
    other, as in Alpa's overlap-friendly one and in the runtimes of the others, and where all stages have streams.
    """
    streams = bool(stages) and all(stage.streams for stage in stages)
    return "blocking" if schedule in _BLOCKING and not streams else "overlapped"


def _run(
    tasks: StepProgram,
    stages: tuple[StageTimes, ...],
    seconds: NDArray[np.float64],
    cores: float | None,
    waiting: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Starts and ends of the tasks, each of shape (N,)."""
    if cores is None:
        return own_devices(tasks, seconds)
    checks.positive("simulate", "cores", cores)
    devices, apart = (np.array([getattr(stage, name) for stage in stages]) for name in ("devices", "apart"))
    return shared_cores(tasks, seconds, devices, apart, cores, waiting)


def _seconds(tasks: StepProgram, stages: tuple[StageTimes, ...], order: Schedule) -> NDArray[np.float64]:
    return np.asarray(stage_seconds(stages, order.trains)[task_entries(tasks)])


def _spans(
    tasks: StepProgram, kind: int, order: Schedule, starts: NDArray[np.float64], ends: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Start and end of the tasks of a kind, shape (S, B, 2); NaN where there is none."""
    spans = np.full((order.num_stages, order.num_micro_batches, 2), np.nan)
    chosen = tasks.kind == kind
    where = tasks.stage[chosen], tasks.micro_batch[chosen]
    spans[where] = np.stack([starts[chosen], ends[chosen]], axis=1)
    return spans
