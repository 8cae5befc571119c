"""Says what other schedules would be worth on a plan's submeshes, with its layers cut anew into each one's chunks.

Alpa runs four schedules. Others fill bubbles by splitting backward passes, or by giving each submesh several parts
(chunks) of the model. Here each is simulated on the submeshes, meshes and micro-batches of a plan, by the costs that
the plan was made from. Transfers block both stages in Alpa's schedules, as they do there, and overlap computing in the
others, as in the runtimes that have them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, final

from alpa_dejavu.planning._candidate import Candidate, Costs, fits, simulated
from alpa_dejavu.planning._chunks import chunks_of, impossible
from alpa_dejavu.planning._polish import polished
from alpa_dejavu.planning._schedules import ANY_SCHEDULE
from alpa_dejavu.problem import Run, Slicing
from alpa_dejavu.schedules import schedule_kind

if TYPE_CHECKING:
    from alpa_dejavu.planning.result import PlanningResult

__all__ = ["OtherSchedule", "other_schedules"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class OtherSchedule:
    """A plan's step by another schedule on the same submeshes.

    Attributes:
        name, chunks: the schedule, and the stages of each submesh.
        step_s: the seconds of its simulated step; None where it can't be had.
        memory_bytes: the largest peak of memory of a device; None likewise.
        fits: whether every device's peak leaves free what the plan's memory margin asks for.
        layers: the first and the last layer of each stage, in order.
        submesh_of: the number of each stage's submesh among the plan's.
        runtimes: who can run the schedule, by name.
        why: what stands against it, in a few words; empty if nothing does.
    """

    name: str
    chunks: int
    step_s: float | None = None
    memory_bytes: float | None = None
    fits: bool = False
    layers: tuple[tuple[int, int], ...] = ()
    submesh_of: tuple[int, ...] = ()
    runtimes: tuple[str, ...] = ()
    why: str = ""


def other_schedules(planned: PlanningResult) -> list[OtherSchedule]:
    """Returns a plan's step by each schedule that trains as its own does: those that fit first, the fastest first of
    them, and last those that can't be had, with the reason.

    Schedules that update the weights after each micro-batch are left out, since they train otherwise. The layers are
    cut so that no chunk takes much longer than others, and then moved one by one as long as that makes the simulated
    step shorter.

    Args:
        planned: the plan with the costs that it was made from; its schedule must train.

    Raises:
        ValueError: the plan only infers.
    """
    if not planned.model.training:
        raise ValueError("the plan's step takes no gradients, so its schedule is 'inference', and no other is one")
    costs = Costs(planned.model, planned.cluster, planned.space, planned.run, planned.table)
    numbers = planned.cluster.host_numbers
    hosts = tuple(tuple(numbers[name] for name in stage.hosts) for stage in planned.plan.on_submeshes)
    on = planned.run.on_submeshes(planned.choices)
    whole = on if planned.run.form.chunks == 1 else chunks_of(costs.table, on, Run(planned.run.num_micro_batches))
    slicing = Slicing(whole, planned.plan.step_s, 0.0, 0, 0.0)
    found = [_by(Candidate(costs.under(name), slicing, hosts)) for name in ANY_SCHEDULE]
    return sorted(found, key=lambda one: (one.step_s is None, not one.fits, one.step_s or 0.0))


def _by(candidate: Candidate) -> OtherSchedule:
    """Returns what a candidate plan's schedule is worth on its submeshes, with the layers cut for it."""
    run = candidate.run
    bare = OtherSchedule(run.schedule, run.form.chunks, runtimes=schedule_kind(run.schedule).runtimes)
    why = impossible(run, len(candidate.slicing.stages), candidate.model.num_layers)
    if why:
        return dataclasses.replace(bare, why=why)
    best = polished(simulated(candidate))
    step = best.timeline
    assert step is not None, "it was simulated"
    there = fits(best)
    return dataclasses.replace(
        bare,
        step_s=best.step_s,
        memory_bytes=max(step.peak_bytes),
        fits=there,
        layers=tuple((stage.first, stage.last) for stage in best.stages),
        submesh_of=best.submesh_of,
        why="" if there else "it takes more memory than the devices have",
    )
