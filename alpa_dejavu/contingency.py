"""What is run when a host is lost: planned with the plan, from the same costs, so that nobody has to wait for it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from alpa_dejavu._finished import finished_plan
from alpa_dejavu._kinds import kinds_of, members_of_kinds
from alpa_dejavu.changed_cluster import fair_ratio, without
from alpa_dejavu.cost_table import CostTable, cost_table
from alpa_dejavu.interstage import InterstageTransfer
from alpa_dejavu.moves import Settler, layer_state, moves
from alpa_dejavu.placement import packs
from alpa_dejavu.problem import Cluster, Contingency, Model, Plan, SearchSpace, SlicingProblem, StagePlan
from alpa_dejavu.search import Candidate, simulated, sliced
from alpa_dejavu.slicing import Slicer
from alpa_dejavu.stage_costs import KINDS

__all__ = ["Fallback", "hosts_left", "with_contingencies", "with_planned"]

_Stages: TypeAlias = tuple[StagePlan, ...]
Fallback: TypeAlias = tuple[_Stages, float, int]
"""Stages, seconds of a step, and micro-batches."""
_SMALLER = 2
_MANY = 4
"""On more hosts than this, no stage gets fewer devices than the plan's smallest: the search is so much shorter."""


def with_contingencies(
    plan: Plan, chosen: Candidate, cluster: Cluster, slicer: Slicer, others: Sequence[Candidate] = ()
) -> Plan:
    """The plan with what is run instead without each single host: of interchangeable hosts, one is planned for.

    A contingency takes all devices that are left. Where no choice of submeshes can, it leaves out as many whole hosts
    as it takes to have a power of two of them. A host without which nothing fits has none, and the plan says so.

    Args:
        plan: of the candidate, its seconds corrected or not.
        chosen: what the plan was made of.
        cluster: that it is for; a single host has nothing to fall back on.
        slicer: the search.
        others: of other numbers of micro-batches; those with more are tried where memory becomes short: where nothing
            fits, or a step takes much longer than fewer devices explain.
    """
    if len(cluster.hosts) == 1 or chosen.table.stage_costs is None:
        return plan
    tried = [chosen, *_smaller(chosen, others)]
    planned = [_at_last(kind, plan, tried, cluster, slicer) for kind in range(max(kinds_of(cluster)) + 1)]
    return with_planned(plan, planned, cluster, chosen.model)


def with_planned(plan: Plan, planned: Sequence[Fallback], cluster: Cluster, model: Model) -> Plan:
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
        found[lost] = Contingency(stages, step_s, count, moves(plan.stages, stages, cluster, state, (lost,)), unused)
    missing = [name for name in names if name not in found]
    notes = (*plan.notes, *([_note(missing, len(names))] if missing else []))
    return dataclasses.replace(plan, contingencies=found, notes=notes)


def _note(missing: list[str], count: int) -> str:
    which = "any one of its hosts" if len(missing) == count else " or ".join(missing)
    return f"nothing fits without {which}: there is no contingency for that loss"


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


def _smaller(chosen: Candidate, others: Sequence[Candidate]) -> list[Candidate]:
    """One for each of the next larger numbers of micro-batches, with the same layers."""
    found: dict[int, Candidate] = {}
    for other in others:
        count = other.run.num_micro_batches
        if count > chosen.run.num_micro_batches and other.model.num_layers == chosen.model.num_layers:
            found.setdefault(count, other)
    return [found[count] for count in sorted(found)][:_SMALLER]


def _at_last(kind: int, plan: Plan, tried: Sequence[Candidate], cluster: Cluster, slicer: Slicer) -> Fallback:
    """The first one that memory does for, or the fastest."""
    left = without(cluster, [cluster.hosts[members_of_kinds(cluster)[kind][0]].name])
    best: Fallback = (), math.inf, 0
    for one in tried:
        stages, step_s = _without(kind, plan, one, cluster, slicer)
        if stages and step_s < best[1]:
            best = stages, step_s, one.run.num_micro_batches
        if best[1] <= plan.step_s * fair_ratio(cluster, left):
            break
    return best


def _without(kind: int, plan: Plan, chosen: Candidate, cluster: Cluster, slicer: Slicer) -> tuple[_Stages, float]:
    """The stages of the best plan without a host of a kind, and the seconds of its step; no stages if nothing fits."""
    members = members_of_kinds(cluster)
    if chosen.space.hosts is not None:
        # By the same costs: on a CPU that is shared, what is left gets more of it than is reckoned with.
        left = [len(hosts) - (n == kind) for n, hosts in enumerate(members)]
        problem = chosen.table.slicing_problem(cluster, chosen.space, chosen.run, left)
        found = sliced(problem, chosen.space, cluster, slicer)
        if not found.found:
            return (), 0.0
        other = dataclasses.replace(chosen, slicing=found, timeline=None, hosts=None)
        return _finished(simulated(other, cluster), cluster, plan)
    lost, count = cluster.hosts[members[kind][0]], len(cluster.hosts) - 1
    for cut in hosts_left(cluster, kind):
        table, space = _costs(cut, chosen, len(members) == 1 and not cluster.shared)
        many = len(members) == 1 and count > _MANY
        least = min(lost.num_devices, *(stage.submesh.num_devices for stage in plan.stages)) if many else 1
        table, space = _from(table, space, least, cut)
        found = slicer.slice(_shortened(table.slicing_problem(cut, space, chosen.run)))
        if found.found:
            other = Candidate(chosen.model, table, space, chosen.run, found)
            # As the plan itself was timed; the slicer's objective for inference isn't a time.
            timed = chosen.timeline is not None or chosen.run.schedule == "inference"
            return _finished(simulated(other, cut) if timed else other, cut, plan)
    return (), 0.0


def hosts_left(cluster: Cluster, kind: int) -> Iterator[Cluster]:
    """The cluster without the first host of a kind, and without as many more as leave a power of two of them."""
    lost = members_of_kinds(cluster)[kind][0]
    names = [host.name for host in cluster.hosts]
    left = [*names[:lost], *names[lost + 1 :]]
    whole = 2 ** ((len(left) - 1).bit_length() - 1) if len(left) > 1 else len(left)
    for count in dict.fromkeys([len(left), whole]):
        yield without(cluster, [names[lost], *left[count:]])


def _from(table: CostTable, space: SearchSpace, devices: int, cluster: Cluster) -> tuple[CostTable, SearchSpace]:
    """What there is of stages on so many devices or more, none of them on parts of several hosts."""
    packed = packs(space, cluster)
    chosen = [s for s, submesh in enumerate(space.submeshes) if submesh.num_devices >= devices and packed[s]]
    if len(chosen) == len(space.submeshes):
        return table, space
    columns = {name: getattr(table, name)[:, :, chosen] for name in (*KINDS, "offered", "max_n_succ_stages")}
    memory, limits = tuple(table.memory[s] for s in chosen), table.memory_limit_bytes[chosen]
    found = dataclasses.replace(
        table, **columns, memory=memory, memory_limit_bytes=limits, devices=tuple(table.devices[s] for s in chosen),
        interstage=table.interstage and table.interstage.of(chosen),
    )  # fmt: skip
    return found, _part(space, chosen)


def _part(space: SearchSpace, submeshes: list[int]) -> SearchSpace:
    chosen, configs = tuple(space.submeshes[s] for s in submeshes), tuple(space.configs[s] for s in submeshes)
    return SearchSpace(chosen, configs, space.allowed_imbalance)


def _shortened(problem: SlicingProblem) -> SlicingProblem:
    """The same problem, with devices counted in the largest number that all submeshes are multiples of."""
    unit = math.gcd(problem.num_devices, *problem.submesh_sizes.tolist())
    sites = problem.sites
    if unit == 1 or sites is None or not sites.alike:
        return problem
    sizes, count = problem.submesh_sizes // unit, problem.num_devices // unit
    sites = dataclasses.replace(sites, uses=sizes[:, None], available=np.array([count]))
    return dataclasses.replace(problem, submesh_sizes=sizes, num_devices=count, sites=sites)


def _finished(found: Candidate, cluster: Cluster, plan: Plan) -> tuple[_Stages, float]:
    made = finished_plan(
        found.slicing.stages, found.table, cluster, found.space, found.run, step_s=found.step_s,
        lower_bound_s=found.slicing.lower_bound_s, planning_s={},
    )  # fmt: skip
    if plan.correction is not None:
        from alpa_dejavu.history import corrected

        made = corrected(made, plan.correction)
    return made.stages, made.step_s


def _costs(cluster: Cluster, chosen: Candidate, alike: bool) -> tuple[CostTable, SearchSpace]:
    """The costs on what is left; where hosts are alike, nearly all of them are what they were."""
    table, space, costs = chosen.table, chosen.space, chosen.table.stage_costs
    assert costs is not None, "looked at before"
    if not alike or np.isfinite(space.allowed_imbalance):
        fitting = [s for s, submesh in enumerate(space.submeshes) if submesh.num_hosts <= len(cluster.hosts)]
        space = _part(space, fitting)
        return cost_table(chosen.model, cluster, space, chosen.run, costs.models, table.margin), space
    # What crosses from stage to stage stays within the host if there is one alone.
    return table.with_transfer(InterstageTransfer(chosen.model, cluster, costs.models.communication), space), space
