"""Says what other schedules, and a better order of passes, would be worth on a plan's submeshes.

Others than Alpa's fill bubbles by splitting backward passes, or by several parts (chunks) of the model on each submesh,
for which layers are cut anew. Transfers block both stages in Alpa's schedules, and overlap computing in the others.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, final

from alpa_dejavu._util.ties import least
from alpa_dejavu.planning.given._annotations import Chosen
from alpa_dejavu.planning.search._candidate import Candidate, Costs, fits, simulated
from alpa_dejavu.planning.search._polish import ANY_SCHEDULE, polished, under
from alpa_dejavu.planning.search._stage_times import chunks_of, impossible, stage_times
from alpa_dejavu.planning.search.runtimes import runtimes_with
from alpa_dejavu.problem import Plan, Run, Slicing
from alpa_dejavu.problem.run import ALPA_SCHEDULES, schedule_form
from alpa_dejavu.schedules import named_schedule
from alpa_dejavu.simulation.improved import ImprovedSchedule, improved_schedule
from alpa_dejavu.simulation.step import sending

if TYPE_CHECKING:
    from alpa_dejavu.planning.result import PlanningResult


@final
@dataclasses.dataclass(frozen=True, eq=False)
class OtherSchedule:
    """A plan's step by another schedule on the same submeshes."""

    name: str  # `name`, `chunks`: the schedule, and the stages of each submesh
    chunks: int
    step_s: float | None = None  # `step_s`, `memory_bytes`: the simulated step, and the largest peak; None: not known
    memory_bytes: float | None = None
    fits: bool = False  # whether every device's peak leaves free what the plan's memory margin asks for
    layers: tuple[tuple[int, int], ...] = ()  # `layers`, `submesh_of`: each stage's first and last layer, and submesh
    submesh_of: tuple[int, ...] = ()
    runtimes: tuple[str, ...] = ()  # who can run the schedule, by name
    why: str = ""  # what stands against it, in a few words; empty if nothing does


def other_schedules(planned: PlanningResult) -> list[OtherSchedule]:
    """Returns a plan's step by each schedule that trains as its own does: those that fit first, by their time, and last
    those that can't be had, with the reason. Layers are cut so that no chunk takes much longer than others, and moved
    one by one as long as steps get shorter. Raises ValueError if the plan only infers.
    """
    if not planned.model.training:
        raise ValueError("the plan's step takes no gradients, so its schedule is 'inference', and no other is one")
    costs = Costs(planned.model, planned.cluster, planned.space, planned.run, planned.table)
    numbers = planned.cluster.host_numbers
    hosts = tuple(tuple(numbers[name] for name in stage.hosts) for stage in planned.plan.on_submeshes)
    on = planned.run.on_submeshes(planned.choices)
    whole = on if planned.run.form.chunks == 1 else chunks_of(costs.table, on, Run(planned.run.num_micro_batches))
    slicing = Slicing(whole, planned.plan.step_s, 0.0, 0, 0.0)
    others = [_by(Candidate(costs.under(name), slicing, hosts)) for name in ANY_SCHEDULE]
    return sorted(others, key=lambda other: (other.step_s is None, not other.fits, other.step_s or 0.0))


def _by(candidate: Candidate) -> OtherSchedule:
    """Returns what a candidate plan's schedule is worth on its submeshes, with the layers cut for it."""
    run = candidate.run
    bare = OtherSchedule(run.schedule, run.form.chunks, runtimes=runtimes_with(run.schedule))
    why = impossible(run, len(candidate.slicing.stages), candidate.model.num_layers)
    if why:
        return dataclasses.replace(bare, why=why)
    best = polished(simulated(candidate))
    fitting = fits(best)
    return dataclasses.replace(
        bare,
        step_s=best.step_s,
        memory_bytes=max(best.timeline.peak_bytes),
        fits=fitting,
        layers=tuple((stage.first, stage.last) for stage in best.stages),
        submesh_of=best.submesh_of,
        why="" if fitting else "it takes more memory than the devices have",
    )


_WORTH = 0.01


def with_better_schedules(plan: Plan, chosen: Chosen) -> Plan:
    """Returns the plan with notes on Alpa's best schedule, and the best other, if a step is over 1 % shorter by it."""
    own = chosen.candidates[0]
    if not own.model.training or own.cluster.shared:
        return plan
    others = [other for name in ANY_SCHEDULE if (other := under(own, name)) is not None]
    notes = []
    for of_alpa in (True, False):
        alike = [other for other in others if (other.run.schedule in ALPA_SCHEDULES) == of_alpa]
        best = least(alike, key=lambda other: other.step_s) if alike else own
        saved, name = 1 - best.step_s / own.step_s, best.run.schedule
        if saved >= _WORTH:
            runtimes = " and ".join(runtimes_with(name))
            others_have = f", but {runtimes}" if runtimes else ""
            whose = "which Alpa has" if of_alpa else f"which Alpa hasn't{others_have}"
            notes.append(
                f"the schedule {name}, {whose}, would make a step on the same submeshes {100 * saved:.0f} % shorter"
            )
    chosen.clock.lap("schedules")
    return dataclasses.replace(plan, notes=(*plan.notes, *notes))


_SIMULATED_TASKS = 4_000_000
"""So many tasks are simulated at most, of all orders that are tried together."""


def improved_order(planned: PlanningResult) -> ImprovedSchedule:
    """Returns an order of a plan's passes whose step is no longer than by its schedule, with a bound for any order.

    The search begins with schedules that have the same stages on each submesh, and splits backward passes. Raises
    ValueError if the plan only infers, updates after each micro-batch, or its devices share one CPU.
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
    count, micro_batches, forms = len(planned.choices), run.num_micro_batches, map(schedule_form, ANY_SCHEDULE)
    alike = [
        name
        for name, form in zip(ANY_SCHEDULE, forms, strict=True)
        if (form.chunks, form.folded) == (run.form.chunks, run.form.folded)
        and not impossible(Run(micro_batches, name), count // run.form.chunks, count)
    ]
    begin = [named_schedule(name, count, micro_batches) for name in dict.fromkeys([run.schedule, *alike])]
    tries = max(20, _SIMULATED_TASKS // (3 * len(times) * micro_batches))
    return improved_schedule(times, begin, sends=sending(run.schedule, times), most_tries=min(tries, 4000))
