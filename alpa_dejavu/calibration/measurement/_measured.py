"""The times of stages, and the timeline of a step, as measured."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.calibration.measurement.notes import SEND, StageTasks, StepNotes, TaskTime, stage_tasks
from alpa_dejavu.schedules import named_schedule
from alpa_dejavu.simulation.step import StageTimes, Timeline, simulate


@final
@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredPlan:
    """The measurements of a plan that ran: its steps, the times of its stages, and the timeline of a step."""

    # steps_s, noted_steps_s: the seconds of each step, as the program that asks for it sees it, while workers took no
    # notes, and while they noted each of their instructions
    steps_s: tuple[float, ...]
    noted_steps_s: tuple[float, ...]
    stages: tuple[StageTimes, ...]  # the times of each stage: medians over steps of the mean over micro-batches
    # For each stage the seconds of the computation of a forward and of a backward pass; `stages` also counts what the
    # worker does for them besides (starting, sending, receiving)
    computing_s: tuple[tuple[float, float], ...]
    answer_s: float  # the seconds from the end of a step's last stage until the program knows it
    timeline: Timeline  # the timeline of the noted step of median length
    computing_steps_s: tuple[tuple[float, ...], ...] = ()  # of each stage in each noted step, (noted steps, S)

    @property
    def step_s(self) -> float:
        """Returns the median seconds of those measured steps in which no instruction was noted."""
        return statistics.median(self.steps_s)

    @property
    def simulated_s(self) -> float:
        """Returns the seconds until a step is known to be done, as simulated from the stages' measured times."""
        timeline = self.timeline
        simulated = simulate(self.stages, timeline.num_micro_batches, timeline.schedule, sends="buffered")
        return simulated.step_s + self.answer_s


def measured(
    steps_s: Sequence[float],
    noted: Sequence[StepNotes],
    num_micro_batches: int,
    schedule: str,
    devices: Sequence[int],
    planned: Sequence[StageTimes] = (),
) -> MeasuredPlan:
    """Returns the measured steps, stage times and timeline from the workers' notes of at least one step; ValueError
    where these aren't such notes. Steps without notes count, or the noted ones if there are none. `devices` are those
    of each of S stages, shape (S,); memory is that of the planned times.
    """
    if not noted:
        raise ValueError("measured: there are no notes of any step; note at least one")
    tasks = [_tasks(step, num_micro_batches, schedule, len(devices)) for step in noted]
    stages = tuple(
        dataclasses.replace(
            _stage_times(tasks, n, count, planned[n] if planned else None),
            start_s=statistics.median(
                step.stages[n].start_s - step.start_s + of[n].before_s for step, of in zip(noted, tasks, strict=True)
            ),
        )
        for n, count in enumerate(devices)
    )
    computing = tuple(
        (_median(step[n].forwards for step in tasks), _median(_without_last(step[n].backwards) for step in tasks))
        for n in range(len(devices))
    )
    order = sorted(range(len(noted)), key=lambda n: noted[n].step_s)
    middle = order[len(order) // 2]
    return MeasuredPlan(
        steps_s=tuple(steps_s) or tuple(step.step_s for step in noted),
        noted_steps_s=tuple(step.step_s for step in noted),
        stages=stages,
        computing_s=computing,
        answer_s=statistics.median(step.answer_s for step in noted),
        timeline=_timeline(noted[middle], tasks[middle], stages, num_micro_batches, schedule),
        computing_steps_s=tuple(tuple(stage.computing_s for stage in step.stages) for step in noted),
    )


def _tasks(step: StepNotes, size: int, schedule: str, num_stages: int) -> list[StageTasks]:
    sent = {
        message.key: message.there_s
        for stage in step.stages
        for note in stage.notes
        if note.what == SEND
        for message in note.messages
    }
    stages = [stage_tasks(n, len(step.stages), stage, sent) for n, stage in enumerate(step.stages)]
    wanted = (size, 0 if schedule == "inference" else size)
    for n, tasks in enumerate(stages):
        counts = len(tasks.forwards), len(tasks.backwards)
        if counts != wanted or len(stages) != num_stages:
            raise ValueError(
                f"stage {n} of {len(stages)} ran {counts[0]} forwards and {counts[1]} backwards; the plan has "
                f"{num_stages} stages and asks for {wanted[0]} and {wanted[1]}"
            )
    return stages


def _stage_times(
    tasks: Sequence[Sequence[StageTasks]], stage: int, devices: int, planned: StageTimes | None
) -> StageTimes:
    steps = [step[stage] for step in tasks]
    forward = _median((step.forwards for step in steps), lambda task: task.busy_s)
    backward = _median((_without_last(step.backwards) for step in steps), lambda task: task.busy_s)
    last = _median((step.backwards[-1:] for step in steps), lambda task: task.busy_s)
    synchronisation = max(last - backward, 0.0)
    times = StageTimes(
        forward_s=forward,
        backward_s=backward,
        per_step_s=synchronisation + statistics.median(step.after_s for step in steps),
        forward_send_s=_transfer_s(
            [task for step in tasks if stage + 1 < len(step) for task in step[stage + 1].forwards]
        ),
        backward_send_s=_transfer_s([task for step in tasks if stage for task in step[stage - 1].backwards]),
        synchronisation_s=synchronisation,
        forward_post_s=_median((step.forwards for step in steps), lambda task: task.post_s),
        backward_post_s=_median((step.backwards for step in steps), lambda task: task.post_s),
        devices=devices,
    )
    if planned is None:
        return times
    bytes_of = ("activation_bytes", "resident_bytes", "temporary_bytes", "memory_limit_bytes")
    return dataclasses.replace(times, **{name: getattr(planned, name) for name in bytes_of})


def _without_last(backwards: tuple[TaskTime, ...]) -> tuple[TaskTime, ...]:
    """Returns the backwards without the last, in which gradients are synchronised, unless it is the only one."""
    return backwards[:-1] or backwards


def _median(
    steps: Iterable[Sequence[TaskTime]], seconds: Callable[[TaskTime], float] = lambda task: task.end_s - task.start_s
) -> float:
    """Returns the median over steps of the mean over a step's tasks."""
    means = [statistics.fmean(map(seconds, tasks)) for tasks in steps if tasks]
    return statistics.median(means) if means else 0.0


def _transfer_s(tasks: Sequence[TaskTime]) -> float:
    """Returns the median of transfers that were waited for, as a busy receiver takes messages late; else of all."""
    waited = [task.transfer_s for task in tasks if task.transfer_s is not None and task.waited]
    transfers = waited or [task.transfer_s for task in tasks if task.transfer_s is not None]
    return statistics.median(transfers) if transfers else 0.0


def _timeline(
    step: StepNotes, tasks: Sequence[StageTasks], stages: tuple[StageTimes, ...], size: int, schedule: str
) -> Timeline:
    """The step as it went, from its call on."""
    forward, backward = (_spans([getattr(stage, kind) for stage in tasks], size) for kind in ("forwards", "backwards"))
    ahead, back = np.full_like(forward, np.nan), np.full_like(forward, np.nan)
    ahead[:-1] = _transfers([stage.forwards for stage in tasks[1:]], size)
    back[1:] = _transfers([stage.backwards for stage in tasks[:-1]], size)
    updates = np.array([[stage.update] for stage in tasks])
    return Timeline(
        stages, named_schedule(schedule, len(stages), size), False, step.step_s,
        *(spans - step.start_s for spans in (forward, backward, ahead, back, updates)),
    )  # fmt: skip


def _spans(tasks: Sequence[Sequence[TaskTime]], size: int) -> NDArray[np.float64]:
    spans = np.full((len(tasks), size, 2), np.nan)
    for n, stage in enumerate(tasks):
        for batch, task in enumerate(stage):
            spans[n, batch] = task.start_s, task.end_s
    return spans


def _transfers(receivers: Sequence[Sequence[TaskTime]], size: int) -> NDArray[np.float64]:
    spans = np.full((len(receivers), size, 2), np.nan)
    for n, tasks in enumerate(receivers):
        for batch, task in enumerate(tasks):
            if task.transfer_s:
                spans[n, batch] = task.transfer
    return spans
