"""Plans for the loss of a host, made ahead of it, so that nobody has to wait for them then."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from alpa_dejavu._util import units
from alpa_dejavu.clusters.changed_cluster import without
from alpa_dejavu.clusters.host_classes import kinds_of, members_of_kinds
from alpa_dejavu.planning.changed.state_migration import Settler, layer_state, moves
from alpa_dejavu.planning.search._candidate import Candidate, best_first
from alpa_dejavu.planning.search._ranking import ranked
from alpa_dejavu.planning.task import Clock, Found, PlanningTask
from alpa_dejavu.problem import Cluster, Contingency, Model, NoPlanError, Plan, StagePlan
from alpa_dejavu.problem.run import ALPA_SCHEDULES, schedule_form

_Stages: TypeAlias = tuple[StagePlan, ...]
_Fallback: TypeAlias = tuple[_Stages, float, int]
"""Stages, seconds of a step, and micro-batches."""
_CLEARLY = 1.05
"""A plan is clearly better than one that takes so many times as long."""


def with_contingencies(plan: Plan, task: PlanningTask, candidates: Sequence[Candidate]) -> Plan:
    """Returns a plan with a fallback for the loss of each single host; alike hosts share one. On a single host it has
    none.

    A fallback has the plan's layers, so that layers that stay on their hosts needn't be moved, and any number of
    micro-batches. A host without which nothing fits has none, and the plan says so. The plan is that of the first
    candidate, its seconds corrected by past runs or not.
    """
    if len(task.cluster.hosts) == 1:
        return plan
    fallbacks = [_without(kind, plan, task, candidates) for kind in range(max(kinds_of(task.cluster)) + 1)]
    plan = _with_fallbacks(plan, fallbacks, task.cluster, candidates[0].model)
    return dataclasses.replace(plan, notes=(*plan.notes, *_better(plan, task, candidates)))


def _with_fallbacks(plan: Plan, fallbacks: Sequence[_Fallback | None], cluster: Cluster, model: Model) -> Plan:
    """Returns the plan with contingencies for each host, of what was planned without the first host of each kind."""
    names, state, kinds = [host.name for host in cluster.hosts], layer_state(model), kinds_of(cluster)
    devices = {host.name: host.num_devices for host in cluster.hosts}
    settlers = [fallback and Settler(fallback[0], plan.stages, devices, state) for fallback in fallbacks]
    contingencies: dict[str, Contingency] = {}
    for lost, kind in zip(names, kinds, strict=True):
        fallback, settler = fallbacks[kind], settlers[kind]
        if fallback is None or settler is None:
            continue
        stages, step_s, count = fallback
        stages = _renamed(stages, lost, [name for name, other in zip(names, kinds, strict=True) if other == kind])
        if not stages:
            continue
        if not any(kinds):
            stages = settler.settled(stages, (lost,))
        used = {lost, *(host for stage in stages for host in stage.hosts)}
        unused = tuple(name for name in names if name not in used)
        moved = moves(plan.stages, stages, cluster, state, (lost,), schedule_form(plan.schedule))
        contingencies[lost] = Contingency(stages, step_s, count, moved, unused)
    missing = [name for name in names if name not in contingencies]
    notes = (*plan.notes, *([_note(missing, len(names), plan.schedule)] if missing else []))
    return dataclasses.replace(plan, contingencies=contingencies, notes=notes)


def _note(missing: list[str], count: int, schedule: str) -> str:
    which = "any one of its hosts" if len(missing) == count else " or ".join(missing)
    under = "" if schedule in ALPA_SCHEDULES else f" under {schedule} (others weren't looked at)"
    return f"nothing fits without {which}{under}: there is no contingency for that loss"


def _renamed(stages: _Stages, lost: str, alike: Sequence[str]) -> _Stages:
    """Returns the stages with a lost host's part on one of its kind that they don't use; none if they use all."""
    used = {host for stage in stages for host in stage.hosts}
    spare = next((name for name in alike if name not in used), None)
    if lost not in used:
        return stages
    if spare is None:
        return ()
    return tuple(
        dataclasses.replace(stage, hosts=tuple(spare if host == lost else host for host in stage.hosts))
        for stage in stages
    )


def _without(kind: int, plan: Plan, task: PlanningTask, candidates: Sequence[Candidate]) -> _Fallback | None:
    """Returns the best plan without the first host of a kind; None if none fits. Those candidates count, too, whose
    hosts, or others of their kinds in their place, leave one of the kind unused.
    """
    best, members = candidates[0], members_of_kinds(task.cluster)[kind]
    names, shape = {task.cluster.hosts[host].name for host in members}, (best.model.num_layers, best.run.schedule)
    left = [
        candidate
        for candidate in candidates
        if (candidate.model.num_layers, candidate.run.schedule) == shape and names - _used(candidate)
    ]
    for cluster in _clusters_left(task.cluster, task.cluster.hosts[members[0]].name):
        with contextlib.suppress(NoPlanError, ValueError):  # a strategy can't handle every cluster
            left += task.chooser.again(task.on(cluster), candidates, Clock())
        if left:
            break
    if not left:
        return None
    # As if it were asked for what is left of the cluster, so that `replan` finds the same.
    asked = dataclasses.replace(task.on(cluster), objective="time", correction=None, before=None)
    fallback = ranked(asked, Found(best_first(left)), Clock())[0].plan
    if plan.correction is not None:
        from alpa_dejavu.calibration.history import corrected

        fallback = corrected(fallback, plan.correction)
    return fallback.stages, fallback.step_s, fallback.num_micro_batches


def _better(plan: Plan, task: PlanningTask, candidates: Sequence[Candidate]) -> list[str]:
    """Returns a sentence on the loss that costs most, where a plan of another number of layers takes clearly less."""
    if not plan.contingencies:
        return []
    candidates = [candidate for candidate in candidates if candidate.run.schedule == candidates[0].run.schedule]
    lost, worst = max(plan.contingencies.items(), key=lambda item: item[1].step_s)
    others = {candidate.model.num_layers: candidate for candidate in reversed(candidates)}
    others.pop(candidates[0].model.num_layers)
    left = without(task.cluster, [lost])
    spared = [
        candidate for candidate in candidates if candidate.cluster is not task.cluster and lost not in _used(candidate)
    ]
    if others:  # the finest cut leaves most to choose from
        finest = others[max(others)]
        first = [finest, *(candidate for candidate in candidates if candidate is not finest)]
        spared += task.chooser.again(task.on(left), first, Clock())
    best = best_first(spared)[0] if spared else None
    factor = 1.0 if plan.correction is None else plan.correction.factor
    if best is not None and best.step_s * factor * _CLEARLY <= worst.step_s:
        return [
            f"without {lost} `replan` keeps this plan's layers, and a step takes {units.seconds(worst.step_s)}; `plan "
            f"--layers {best.model.num_layers}` for the hosts that are left would find "
            f"{units.seconds(best.step_s * factor)}"
        ]
    untried = {*task.layers} - {candidate.model.num_layers for candidate in candidates}
    if not untried or worst.step_s <= _CLEARLY * plan.step_s * task.cluster.num_devices / left.num_devices:
        return []
    return [
        f"without {lost} a step takes longer than fewer devices explain, and plans of {min(untried)} layers weren't "
        f"looked at: try `plan --layers {min(untried)}` for the hosts that are left"
    ]


def _used(candidate: Candidate) -> set[str]:
    return {candidate.cluster.hosts[host].name for hosts in candidate.placed for host in hosts}


def _clusters_left(cluster: Cluster, lost: str) -> Iterator[Cluster]:
    """Yields the cluster without a host, and without as many more as leave a power of two of them."""
    left = [host.name for host in cluster.hosts if host.name != lost]
    whole = 2 ** ((len(left) - 1).bit_length() - 1) if len(left) > 1 else len(left)
    for count in dict.fromkeys([len(left), whole]):
        yield without(cluster, [lost, *left[count:]])
