"""Candidates as the plans that people and Alpa get, the best one by the task's objective first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.ties import TOLERANCE, first_least, ordered
from alpa_dejavu.clusters.host_classes import summary_of
from alpa_dejavu.costs.communication.reduction_servers import ReductionSplit, group_split
from alpa_dejavu.costs.stage_costs import StageCostModel
from alpa_dejavu.layers.models import is_marked
from alpa_dejavu.planning.result import price_per_step
from alpa_dejavu.planning.search._candidate import Candidate, host_names
from alpa_dejavu.planning.search._stage_times import stage_times, timeline_of
from alpa_dejavu.planning.search.given_stages import on_used_hosts
from alpa_dejavu.planning.task import Clock, Found, PlanningTask
from alpa_dejavu.problem import Plan, StageChoice, StageOffload, StagePlan
from alpa_dejavu.problem.run import ALPA_SCHEDULES
from alpa_dejavu.simulation.step import Timeline

_NO_SERVERS = "the plan uses none of the cluster's reduction servers: they speed up no all-reduce of its gradients"


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Ranked:
    """A candidate plan as the search found it, with the finished plan that was made of it."""

    plan: Plan  # the finished plan, its seconds corrected by past runs, if there are any
    candidate: Candidate  # the stages with the costs by which they were found
    rivals: bool = True  # whether the best one's probability counts it: by price, dearer hosts' plans aren't

    @property
    def timeline(self) -> Timeline:
        """Returns the simulated step of the plan, its seconds corrected by past runs as the plan's are."""
        timeline = self.candidate.timeline
        if self.plan.correction is None:
            return timeline
        from alpa_dejavu.calibration.history import corrected_timeline

        return corrected_timeline(timeline, self.plan.correction.factor)


def ranked(task: PlanningTask, search: Found, clock: Clock) -> list[Ranked]:
    """Returns the different candidates with their finished plans, the best plan first by the objective of the task."""
    first: dict[tuple[object, ...], Candidate] = {}  # the same stages may come of several shapes of the search
    for candidate in search.candidates:
        key = (
            id(candidate.model),
            candidate.cluster,
            id(candidate.space),
            candidate.run,
            candidate.stages,
            candidate.hosts,
        )
        first.setdefault(key, candidate)
    best, *others = first.values()
    candidates = [_settled(task, best), *others]
    plans = [finished_plan(task, candidate) for candidate in candidates]
    if task.before is not None:
        name, option = task.before.model, task.before.layer_option
        plans = [dataclasses.replace(plan, model=name, layer_option=option) for plan in plans]
    plans = [
        dataclasses.replace(
            plan, notes=search.notes, strategy=search.strategy, runs_on_alpa=search.runs_on_alpa and plan.runs_on_alpa
        )
        for plan in plans
    ]
    if task.objective != "time":  # prices are by the expected step
        from alpa_dejavu.planning.search.uncertainty import confidence

        plans = [
            dataclasses.replace(plan, confidence=confidence([candidate], errors=search.errors))
            for plan, candidate in zip(plans, candidates, strict=True)
        ]
    if task.correction is not None:
        from alpa_dejavu.calibration.history import Origin, corrected

        models, calibration = task.prices.models, task.prices.calibration
        origin = Origin.of(
            candidates[0].model, task.cluster, models.latency, models.communication, calibration, models.runtime
        )
        plans = [corrected(plan, task.correction.of(origin, plan)) for plan in plans]
    plans = [with_reduction_servers(plan, candidate) for plan, candidate in zip(plans, candidates, strict=True)]
    prices = [price_per_step(plan, task.cluster) or 0.0 for plan in plans]
    order = list(range(len(plans)))
    if not search.strategy and (task.objective != "time" or task.correction is not None):
        figures = prices if task.objective == "price" else [plan.step_s for plan in plans]
        order = ordered(order, key=lambda n: figures[n])
    elif goes_by_expected(task, search):
        order = _surest_first(order, plans, candidates, search)
    rivals = order
    if task.objective == "price":
        hourly = [price / plan.expected_s for price, plan in zip(prices, plans, strict=True)]
        rivals = [n for n in order if n == order[0] or hourly[n] <= hourly[order[0]] * (1 + TOLERANCE)]
    clock.lap("placement")
    return [Ranked(plans[n], candidates[n], n in rivals) for n in order]


STEADIER = 0.01
"""An expected step is clearly shorter where it is so by more than this share."""


def goes_by_expected(task: PlanningTask, search: Found) -> bool:
    """Returns whether plans are chosen by their expected steps: seconds of unlike devices err apart from each other,
    so that a plan that waits for both kinds takes longer than its iteration time says.
    """
    unlike = any(host.device != task.cluster.hosts[0].device for host in task.cluster.hosts)
    return unlike and task.objective == "time" and not search.strategy


def _surest_first(
    order: Sequence[int], plans: Sequence[Plan], candidates: Sequence[Candidate], search: Found
) -> list[int]:
    """Returns the order with the plan first whose expected step is the shortest, if that is clearly shorter."""
    from alpa_dejavu.planning.search.uncertainty import expected_steps

    first = order[0]
    factors = [1.0 if plan.correction is None else plan.correction.factor for plan in plans]
    (alone_s,) = expected_steps([candidates[first]], search.errors)
    # A step isn't expected to be shorter than its iteration time.
    others = [n for n in order[1:] if plans[n].step_s < alone_s * factors[first] * (1 - STEADIER)]
    if not others:
        return [*order]
    rivals = [first, *others]
    drawn_s = expected_steps([candidates[n] for n in rivals], search.errors)
    steps_s = np.array([seconds * factors[n] for n, seconds in zip(rivals, drawn_s, strict=True)])
    surest = int(first_least(steps_s)) if steps_s.min() < steps_s[0] * (1 - STEADIER) else 0
    return [rivals[surest], *(n for n in order if n != rivals[surest])]


def contenders(ranking: Sequence[Ranked], search: Found, most: int) -> list[Ranked]:
    """Returns the ranked plans that are worth trying on the devices beside the first one, `most` together with it."""
    if most == 1:
        return []
    from alpa_dejavu.planning.search.uncertainty import drawn_steps, most_useful

    rivals = [choice for choice in ranking if choice.rivals]
    steps_s = drawn_steps([choice.candidate for choice in rivals], errors=search.errors)
    return [rivals[n] for n in most_useful(steps_s, most)]


def _settled(task: PlanningTask, candidate: Candidate) -> Candidate:
    """Returns a candidate on those (alike) hosts that already have most of its training state, where a plan runs."""
    if task.before is None or task.unlike:
        return candidate
    from alpa_dejavu.planning.changed.state_migration import Settler, layer_state

    stages = finished_plan(task, candidate).stages
    devices = {host.name: host.num_devices for host in task.cluster.hosts}
    settler = Settler(stages, task.before.stages, devices, layer_state(candidate.model))
    names = [stage.hosts for stage in settler.settled(stages, ())]
    return candidate if names == [stage.hosts for stage in stages] else on_used_hosts(task, candidate, names)


def finished_plan(task: PlanningTask, candidate: Candidate) -> Plan:
    """Returns a simulated candidate's finished plan. Raises NoPlanError if its submeshes don't fill the hosts."""
    names, run, stages = host_names(candidate), candidate.run, candidate.stages
    numbers = candidate.cluster.host_numbers
    hosts = [[numbers[name] for name in on] for on in names]
    interstage_s = candidate.table.interstage_s(stages, candidate.space, hosts, candidate.submesh_of)
    in_alpa = run.schedule in ALPA_SCHEDULES
    timeline = None if in_alpa else candidate.timeline
    by_weight, kept = [0.0] * len(stages), _kept_by_submesh(candidate, timeline)
    if timeline is not None and run.form.splits:
        by_weight = [stage.backward_weight_s for stage in timeline.stages]
    configs = map(candidate.space.config, stages)
    free_share = max(map(task.margin.free_share_of, task.cluster.hosts))
    return Plan(
        stages=tuple(_stage(candidate, n, names[n], interstage_s[n], by_weight[n], kept) for n in range(len(stages))),
        step_s=candidate.step_s,
        lower_bound_s=min(candidate.slicing.lower_bound_s, candidate.step_s) if in_alpa else 0.0,
        num_micro_batches=run.num_micro_batches,
        schedule=run.schedule,
        runs_on_alpa=in_alpa
        and not task.prices.models.runtime.overlap.streams
        and not any(config.offload.any or not config.plain for config in configs),
        cluster=task.cluster.name,
        planning_s={},
        model=task.source.name,
        batch=task.batch,
        layer_option="manual" if is_marked(task.source.name) else "auto",
        hardware=summary_of(task.cluster),
        priced_by=task.priced_by and dataclasses.replace(task.priced_by, margin=free_share),
    )


@final
@dataclasses.dataclass(frozen=True)
class _AtPeak:
    """The bytes that a device of a submesh keeps at its peak, with all stages on it, and what they are made of."""

    peak_bytes: float
    parts: Mapping[str, float]


def _kept_by_submesh(candidate: Candidate, timeline: Timeline | None) -> list[_AtPeak]:
    """Returns what devices of each submesh keep at their peak, of which Alpa's own schedules need no timeline."""
    if timeline is None:
        last = len(candidate.stages) - 1
        return [_at_peak(candidate, {n: (candidate.run.in_flight(last - n), True)}) for n in range(last + 1)]
    return [_at_peak(candidate, timeline.at_peak(device)) for device in range(timeline.schedule.num_devices)]


def _at_peak(candidate: Candidate, in_use: Mapping[int, tuple[int, bool]]) -> _AtPeak:
    """Returns what a device keeps of its stages, each with so many micro-batches in flight, and computing or not."""
    total, parts, costs = 0.0, dict[str, float](), candidate.table.stage_costs
    for n, (in_flight, computes) in in_use.items():
        choice, times = candidate.stages[n], {"resident": 1, "per_micro_batch": in_flight, "temporary": int(computes)}
        where, config = (choice.first, choice.last), candidate.space.config(choice)
        memory = candidate.table.memory[choice.submesh][choice.config]
        assert memory is not None, "every config has its memory"
        for kind, count in times.items():
            total += float(getattr(memory, kind)[where]) * count
        for part in () if costs is None or config.offload.any else costs.parts(config):
            parts[part.name] = parts.get(part.name, 0.0) + float(part.num_bytes[where]) * times[part.kind]
    return _AtPeak(total, parts)


def _stage(
    candidate: Candidate,
    n: int,
    hosts: tuple[str, ...],
    interstage_s: tuple[float, float],
    by_weight_s: float,
    kept: Sequence[_AtPeak],
) -> StagePlan:
    table, space, choice = candidate.table, candidate.space, candidate.stages[n]
    entry, where, submesh = choice.entry, (choice.first, choice.last), choice.submesh
    config, memory, costs = space.config(choice), table.memory[submesh][choice.config], table.stage_costs
    assert memory is not None, "every config has its memory"
    hidden_s, offload, own, own_remat = (0.0, 0.0), None, kept[candidate.submesh_of[n]], False
    if costs is not None:
        own_remat = any(layer.recomputes for layer in costs.model.layers[choice.first : choice.last + 1])
        hidden = costs.hidden_s(table.devices[submesh], config)[:, choice.first, choice.last]
        hidden_s = float(hidden[:2].sum()), float(hidden[2]) * (1 - config.offload.gradients)
    if config.offload.any:
        assert memory.elsewhere is not None, "a config that offloads keeps something elsewhere"
        assert costs is not None, "a table that was priced keeps its prices"
        limits = table.limits(submesh)
        added = costs.offload_s(table.devices[submesh], config)[:, choice.first, choice.last].tolist()
        offload = StageOffload(
            config.offload,
            host_bytes=float(memory.elsewhere.peak(candidate.run.in_flight(len(candidate.stages) - 1 - n))[where]),
            host_limit_bytes=limits.host_bytes,
            nvme_bytes=float(memory.elsewhere.nvme[where]),
            nvme_limit_bytes=limits.nvme_bytes,
            forward_s=added[0],
            backward_s=added[1],
            step_s=added[2],
        )
    return StagePlan(
        layers=where,
        submesh=space.submeshes[submesh],
        logical_mesh=config.shape,
        hosts=hosts,
        compute_s=float(table.compute_forward_s[entry] + table.compute_backward_s[entry]),
        collective_s=float(table.collective_forward_s[entry] + table.collective_backward_s[entry]),
        boundary_s=sum(interstage_s),
        per_step_s=float(table.synchronisation_s[entry] + table.update_s[entry]),
        memory_bytes=own.peak_bytes,
        memory_limit_bytes=float(table.memory_limit_bytes[submesh]),
        options=dict(config.options),
        remat=config.remat,
        zero=config.zero,
        forward_s=float(table.compute_forward_s[entry] + table.collective_forward_s[entry]),
        backward_s=float(table.compute_backward_s[entry] + table.collective_backward_s[entry]),
        forward_collective_s=float(table.collective_forward_s[entry]),
        forward_boundary_s=interstage_s[0],
        synchronisation_s=float(table.synchronisation_s[entry]),
        backward_weight_s=by_weight_s,
        activation_bytes=float(memory.per_micro_batch[where]),
        resident_bytes=float(memory.resident[where]),
        temporary_bytes=float(memory.temporary[where]),
        offload=offload,
        hidden_s=hidden_s[0],
        hidden_per_step_s=hidden_s[1],
        context_parallel=config.context_parallel,
        expert_parallel=config.expert_parallel,
        sharded=config.sharded,
        expert_tensor=config.expert_tensor,
        remat_share=config.remat_share,
        own_remat=own_remat,
        memory_parts=own.parts,
    )


def with_reduction_servers(plan: Plan, candidate: Candidate) -> Plan:
    """Returns a candidate's plan with notes on the reduction servers that its gradients are split with, as one that
    Alpa can't run; a plan that does without them stays one that it can.

    Each note says how many servers pay, and what they save. A strategy's plan that Alpa can't run is returned as it is.
    """
    table, costs = candidate.table, candidate.table.stage_costs
    if not candidate.cluster.reduction_servers or costs is None or (plan.strategy and not plan.runs_on_alpa):
        return plan
    without = dataclasses.replace(candidate.cluster, reduction_servers=())
    bare = StageCostModel(candidate.model, without, costs.models)
    saved_s = [_combined_s(candidate, bare, stage) - _combined_s(candidate, costs, stage) for stage in candidate.stages]
    if not any(saved_s):
        return dataclasses.replace(plan, notes=(*plan.notes, _NO_SERVERS))
    factor = 1.0 if plan.correction is None else plan.correction.factor
    synchronisation_s, notes = np.array(table.synchronisation_s), []
    for n, (stage, less_s) in enumerate(zip(candidate.stages, saved_s, strict=True)):
        if less_s > 0:
            with_s = synchronisation_s[stage.entry]
            synchronisation_s[stage.entry] += less_s
            slowest = max(_splits(candidate, costs, stage), key=lambda split: split.seconds)
            notes.append(_servers_note(n, slowest, factor * with_s, factor * less_s))
    table = dataclasses.replace(table, synchronisation_s=synchronisation_s)
    times = stage_times(table, candidate.stages, candidate.space, candidate.placed, candidate.run.form)
    without_s = factor * timeline_of(times, candidate.cluster, candidate.run).step_s
    whole = (
        f"with reduction servers a step takes {units.seconds(plan.step_s)}, and {units.seconds(without_s)} of the same "
        "stages without them; Alpa has none, so the plan is estimated only"
    )
    return dataclasses.replace(plan, notes=(*plan.notes, *notes, whole), runs_on_alpa=False)


def _combined_s(candidate: Candidate, costs: StageCostModel, stage: StageChoice) -> float:
    combined = costs.combined(candidate.table.devices[stage.submesh], candidate.space.config(stage), "step")
    return sum(float(seconds[stage.first, stage.last]) for _, seconds in combined)


def _splits(candidate: Candidate, costs: StageCostModel, stage: StageChoice) -> Iterator[ReductionSplit]:
    devices, config = candidate.table.devices[stage.submesh], candidate.space.config(stage)
    for collectives in costs.division(config).combined("step"):
        if collectives.kind == "all_reduce":
            num_bytes = float(collectives.num_bytes[stage.first, stage.last])
            for group in costs.places.groups(devices, config, collectives.axis):
                split = group_split(group, num_bytes)
                if split is not None:
                    yield split


def _servers_note(n: int, split: ReductionSplit, with_s: float, less_s: float) -> str:
    count = len(split.of_servers)
    more = "" if split.paying == count else ", more gain less than 1 %"
    return (
        f"{split.paying} of {count} reduction servers pay for stage {n}{more}: they add up {split.on_servers:.0%} of "
        f"its gradients, which takes {units.seconds(with_s)} instead of {units.seconds(with_s + less_s)}"
    )
