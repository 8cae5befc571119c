"""Plans for the loss of a host, made with the plan itself, so that nobody has to wait for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from alpa_dejavu._util import units
from alpa_dejavu.clusters.changed_cluster import without
from alpa_dejavu.clusters.host_classes import kinds_of, members_of_kinds
from alpa_dejavu.planning.changed.state_migration import Settler, layer_state, moves
from alpa_dejavu.planning.search._candidate import Candidate, best_first
from alpa_dejavu.planning.search._ranking import finished_plan
from alpa_dejavu.planning.task import Clock, PlanningTask
from alpa_dejavu.problem import Cluster, Contingency, Model, NoPlanError, Plan, StagePlan
from alpa_dejavu.problem.run import ALPA_SCHEDULES, schedule_form

__all__ = ["with_contingencies"]

_Stages: TypeAlias = tuple[StagePlan, ...]
_Fallback: TypeAlias = tuple[_Stages, float, int]
"""Stages, seconds of a step, and micro-batches."""
_CLEARLY = 1.05
"""A plan is clearly better than one that takes so many times as long."""


def with_contingencies(plan: Plan, task: PlanningTask, found: Sequence[Candidate], clock: Clock) -> Plan:
    """Returns a plan to which a fallback plan is added for the loss of each single host; alike hosts share one.

    A fallback has the plan's layers, so that layers that stay on their hosts needn't be moved, and any number of
    micro-batches. A host without which nothing fits has no fallback, and the plan says so.

    Args:
        plan: the plan made of the first candidate, its seconds corrected by past runs or not.
        task: the task that the plan was made for; if its cluster is a single host, the plan is returned as it is.
        found: all candidate plans, those on fewer hosts among them.
        clock: a stopwatch, which adds up the seconds of the planning.
    """
    cluster, best = task.cluster, found[0]
    if len(cluster.hosts) == 1:
        return plan
    planned = [_without(kind, plan, task, found, clock) for kind in range(max(kinds_of(cluster)) + 1)]
    made = _with_planned(plan, planned, cluster, best.model)
    return dataclasses.replace(made, notes=(*made.notes, *_better(made, task, found, clock)))


def _with_planned(plan: Plan, planned: Sequence[_Fallback], cluster: Cluster, model: Model) -> Plan:
    """The plan with contingencies for each host, of what was planned without the first host of each kind.

    Args:
        plan: for the whole cluster.
        planned: for each kind of hosts, on hosts of the cluster; no stages: nothing fits.
        cluster: that the plan is for.
        model: of the plan.
    """
    names, state, kinds = [host.name for host in cluster.hosts], layer_state(model), kinds_of(cluster)
    devices = {host.name: host.num_devices for host in cluster.hosts}
    settlers = [stages and Settler(stages, plan.stages, devices, state) for stages, *_ in planned]
    found: dict[str, Contingency] = {}
    for n, lost in enumerate(names):
        (fallback, step_s, count), settler = planned[kinds[n]], settlers[kinds[n]]
        alike = [name for name, kind in zip(names, kinds, strict=True) if kind == kinds[n]]
        stages = _renamed(fallback, lost, alike)
        if not stages or not settler:
            continue
        if not any(kinds):
            stages = settler.settled(stages, (lost,))
        used = {lost, *(host for stage in stages for host in stage.hosts)}
        unused = tuple(name for name in names if name not in used)
        moved = moves(plan.stages, stages, cluster, state, (lost,), schedule_form(plan.schedule))
        found[lost] = Contingency(stages, step_s, count, moved, unused)
    missing = [name for name in names if name not in found]
    notes = (*plan.notes, *([_note(missing, len(names), plan.schedule)] if missing else []))
    return dataclasses.replace(plan, contingencies=found, notes=notes)


def _note(missing: list[str], count: int, schedule: str) -> str:
    which = "any one of its hosts" if len(missing) == count else " or ".join(missing)
    under = "" if schedule in ALPA_SCHEDULES else f" under {schedule} (others weren't looked at)"
    return f"nothing fits without {which}{under}: there is no contingency for that loss"


def _renamed(stages: _Stages, lost: str, alike: Sequence[str]) -> _Stages:
    """The stages with a lost host's part on one of its kind that they don't use; none if they use all."""
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


def _without(kind: int, plan: Plan, task: PlanningTask, found: Sequence[Candidate], clock: Clock) -> _Fallback:
    """The best plan without the first host of a kind, or one that was found on hosts that are left; () if none fits."""
    best, lost = found[0], task.cluster.hosts[members_of_kinds(task.cluster)[kind][0]].name
    shape = best.model.num_layers, best.run.schedule
    alike = [one for one in found if (one.model.num_layers, one.run.schedule) == shape]
    known = [one for one in alike if _leaves(one, task.cluster, kind)]
    for left in _hosts_left(task.cluster, lost):
        try:
            again = task.chooser.again(task.on(left), found, clock)
        except (NoPlanError, ValueError):  # a strategy can't handle every cluster
            again = None
        known += [] if again is None else [again]
        if known:
            break
    if not known:
        return (), 0.0, 0
    made = finished_plan(task, best_first(known)[0])
    if plan.correction is not None:
        from alpa_dejavu.calibration.history import corrected

        made = corrected(made, plan.correction)
    return made.stages, made.step_s, made.num_micro_batches


def _better(plan: Plan, task: PlanningTask, found: Sequence[Candidate], clock: Clock) -> list[str]:
    """A sentence on the loss that costs most, where a plan of another number of layers would take clearly less."""
    if not plan.contingencies:
        return []
    found = [one for one in found if one.run.schedule == found[0].run.schedule]
    lost, worst = max(plan.contingencies.items(), key=lambda item: item[1].step_s)
    others = {one.model.num_layers: one for one in reversed(found)}
    others.pop(found[0].model.num_layers)
    known = [one for one in found if one.cluster is not task.cluster and _spares(one, lost)]
    if others:  # the finest cut leaves most to choose from
        other = others[max(others)]
        first = [other, *(one for one in found if one is not other)]
        again = task.chooser.again(task.on(without(task.cluster, [lost])), first, clock)
        known += [] if again is None else [again]
    best = best_first(known)[0] if known else None
    factor = 1.0 if plan.correction is None else plan.correction.factor
    if best is not None and best.step_s * factor * _CLEARLY <= worst.step_s:
        return [
            f"without {lost} `replan` keeps this plan's layers, and a step takes {units.seconds(worst.step_s)}; `plan "
            f"--layers {best.model.num_layers}` for the hosts that are left would find "
            f"{units.seconds(best.step_s * factor)}"
        ]
    left = without(task.cluster, [lost])
    untried = {*task.layers} - {one.model.num_layers for one in found}
    if not untried or worst.step_s <= _CLEARLY * plan.step_s * task.cluster.num_devices / left.num_devices:
        return []
    return [
        f"without {lost} a step takes longer than fewer devices explain, and plans of {min(untried)} layers weren't "
        f"looked at: try `plan --layers {min(untried)}` for the hosts that are left"
    ]


def _spares(found: Candidate, lost: str) -> bool:
    return all(found.cluster.hosts[host].name != lost for hosts in found.placed for host in hosts)


def _leaves(found: Candidate, cluster: Cluster, kind: int) -> bool:
    """Whether a candidate's hosts, or others of their kinds in their place, are there without one host of a kind."""
    members = {cluster.hosts[host].name for host in members_of_kinds(cluster)[kind]}
    used = {found.cluster.hosts[host].name for hosts in found.placed for host in hosts}
    return len(members & used) < len(members)


def _hosts_left(cluster: Cluster, lost: str) -> Iterator[Cluster]:
    """The cluster without a host, and without as many more as leave a power of two of them."""
    left = [host.name for host in cluster.hosts if host.name != lost]
    whole = 2 ** ((len(left) - 1).bit_length() - 1) if len(left) > 1 else len(left)
    for count in dict.fromkeys([len(left), whole]):
        yield without(cluster, [lost, *left[count:]])
