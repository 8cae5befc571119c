"""The order of a plan's passes, improved for its unlike stages and its links."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from alpa_dejavu.planning._chunks import impossible
from alpa_dejavu.planning._schedules import ANY_SCHEDULE
from alpa_dejavu.planning._stage_times import stage_times
from alpa_dejavu.problem import Run
from alpa_dejavu.problem.run import ScheduleForm, schedule_form
from alpa_dejavu.schedules import Schedule, named_schedule
from alpa_dejavu.simulation.improved import ImprovedSchedule, improved_schedule
from alpa_dejavu.simulation.step import sending

if TYPE_CHECKING:
    from alpa_dejavu.planning.result import PlanningResult

__all__ = ["improved_order"]

_SIMULATED_TASKS = 4_000_000
"""So many tasks are simulated at most, of all orders that are tried together."""


def improved_order(planned: PlanningResult) -> ImprovedSchedule:
    """Returns an order of a plan's passes whose simulated step is no longer than by the plan's own schedule, with a
    bound for any order.

    The search begins with the plan's schedule and with those that have the same stages on each submesh, and splits
    backward passes. Stages, submeshes and micro-batches stay as they are.

    Args:
        planned: the plan with the costs that it was made from; its step must train, with devices of its own.

    Raises:
        ValueError: the plan only infers, updates the weights after each micro-batch, or its devices share one CPU.
    """
    plan, run, cluster = planned.plan, planned.run, planned.cluster
    if not planned.model.training or run.schedule not in ANY_SCHEDULE or cluster.shared:
        raise ValueError(
            f"the plan's schedule is {run.schedule} on {cluster.name}, but must be one that takes all gradients of a "
            "step by the same weights, on devices of their own; leave the order out"
        )
    numbers = cluster.host_numbers
    hosts = [[numbers[name] for name in stage.hosts] for stage in plan.stages]
    split = dataclasses.replace(run.form, splits=True)
    times = [
        dataclasses.replace(stage, memory_limit_bytes=max(usable, stage.resident_bytes))
        for stage, usable in zip(
            stage_times(planned.table, planned.choices, planned.space, hosts, split),
            (float(planned.table.usable_bytes[choice.submesh]) for choice in planned.choices),
            strict=True,
        )
    ]
    tries = max(20, _SIMULATED_TASKS // (3 * len(times) * run.num_micro_batches))
    begin = _like(planned)
    return improved_schedule(times, begin, sends=sending(run.schedule, times), most_tries=min(tries, 4000))


def _like(planned: PlanningResult) -> list[Schedule]:
    """Returns the plan's schedule, and the others with the same stages on each submesh that have its micro-batches."""
    run, count = planned.run, len(planned.choices)
    form = run.form
    alike = [name for name in ANY_SCHEDULE if _layout(schedule_form(name)) == _layout(form)]
    others = [n for n in alike if not impossible(Run(run.num_micro_batches, n), count // form.chunks, count)]
    return [named_schedule(name, count, run.num_micro_batches) for name in dict.fromkeys([run.schedule, *others])]


def _layout(form: ScheduleForm) -> tuple[int, bool]:
    return form.chunks, form.folded
