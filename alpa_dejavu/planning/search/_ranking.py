"""Candidates as plans, by past runs where there are any, the best one by the task's objective first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

from alpa_dejavu.planning.search._candidate import Candidate
from alpa_dejavu.planning.search._clock import Clock
from alpa_dejavu.planning.search._finish import finished_plan
from alpa_dejavu.planning.search._reduction_servers import with_reduction_servers
from alpa_dejavu.planning.search.given_stages import on_used_hosts
from alpa_dejavu.planning.search.price import as_cheap, ordered
from alpa_dejavu.planning.task import Found, PlanningTask
from alpa_dejavu.problem import Plan
from alpa_dejavu.simulation.step import Timeline

__all__ = ["Ranked", "contenders", "plan_of", "ranked", "settled"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Ranked:
    """A candidate plan as the search found it, with the finished plan that was made of it.

    Attributes:
        plan: the finished plan, its seconds corrected by past runs, if there are any.
        candidate: the stages with the costs by which they were found.
        rivals: whether the plan is among those over which the best one's probability of being best is computed: where
            the price counts, plans on dearer hosts aren't.
    """

    plan: Plan
    candidate: Candidate
    rivals: bool = True

    @property
    def timeline(self) -> Timeline:
        """Returns the simulated step of the plan, its seconds corrected by past runs as the plan's are."""
        timeline = self.candidate.timeline
        assert timeline is not None, "choosers simulate"
        if self.plan.correction is None:
            return timeline
        from alpa_dejavu.calibration.history import corrected_timeline

        return corrected_timeline(timeline, self.plan.correction.factor)


def ranked(task: PlanningTask, found: Found, clock: Clock) -> list[Ranked]:
    """Returns the different candidates with their finished plans, the best plan first by the objective of the task."""
    best, *others = _different(found.candidates)
    each = [settled(task, best), *others]
    plans = [
        dataclasses.replace(
            made, notes=found.notes, strategy=found.strategy, runs_on_alpa=found.runs_on_alpa and made.runs_on_alpa
        )
        for made in (plan_of(task, one) for one in each)
    ]
    if task.objective != "time":  # prices are by the expected step
        from alpa_dejavu.planning.search.uncertainty import confidence

        drawn = (confidence([one], errors=found.errors, resolver=found.resolver) for one in each)
        plans = [dataclasses.replace(plan, confidence=known) for plan, known in zip(plans, drawn, strict=True)]
    if task.correction is not None:
        from alpa_dejavu.calibration.history import Origin, corrected

        models, calibration = task.prices.models, task.prices.calibration
        origin = Origin.of(
            each[0].model, task.cluster, models.latency, models.communication, calibration, models.runtime
        )
        plans = [corrected(plan, task.correction.of(origin, plan)) for plan in plans]
    plans = [with_reduction_servers(plan, one) for plan, one in zip(plans, each, strict=True)]
    chooses_itself = found.strategy or (task.objective == "time" and task.correction is None)
    order = list(range(len(plans))) if chooses_itself else ordered(plans, task.cluster, task.objective)
    rivals = order if task.objective != "price" else [order[0], *as_cheap(plans, order[1:], order[0], task.cluster)]
    clock.lap("placement")
    return [Ranked(plans[n], each[n], n in rivals) for n in order]


def contenders(ranking: Sequence[Ranked], found: Found, most: int) -> list[Ranked]:
    """Returns the ranked plans that are worth trying on the devices beside the first one; `most` plans together with
    it.
    """
    if most == 1:
        return []
    from alpa_dejavu.planning.search.uncertainty import worth_trying

    rivals = [one for one in ranking if one.rivals]
    chosen = worth_trying([one.candidate for one in rivals], most, errors=found.errors, resolver=found.resolver)
    return [rivals[n] for n in chosen]


def _different(found: Sequence[Candidate]) -> list[Candidate]:
    """Each candidate once, where it comes first: the same stages may come of several shapes of the search."""
    known: dict[tuple[object, ...], Candidate] = {}
    for one in found:
        known.setdefault((id(one.model), one.cluster, id(one.space), one.run, one.stages, one.hosts), one)
    return list(known.values())


def plan_of(task: PlanningTask, one: Candidate) -> Plan:
    """Returns the finished plan of a candidate, under the model name of the plan that runs already, if one does."""
    made = finished_plan(task, one)
    if task.before is None:
        return made
    return dataclasses.replace(made, model=task.before.model, layer_option=task.before.layer_option)


def settled(task: PlanningTask, one: Candidate) -> Candidate:
    """Returns a candidate on those (alike) hosts that already have most of its training state, where a plan runs."""
    if task.before is None or task.unlike:
        return one
    from alpa_dejavu.planning.changed.state_migration import Settler, layer_state

    stages = finished_plan(task, one).stages
    devices = {host.name: host.num_devices for host in task.cluster.hosts}
    settler = Settler(stages, task.before.stages, devices, layer_state(one.model))
    names = [stage.hosts for stage in settler.settled(stages, ())]
    return one if names == [stage.hosts for stage in stages] else on_used_hosts(task, one, names)
