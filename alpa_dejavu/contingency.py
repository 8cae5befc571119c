"""What is run when a host is lost: planned with the plan, from the same costs, so that nobody has to wait for it."""

from __future__ import annotations

import dataclasses

import numpy as np

from alpa_dejavu._finished import finished_plan
from alpa_dejavu.changed_cluster import without
from alpa_dejavu.cost_table import CostTable, cost_table
from alpa_dejavu.moves import layer_state, moves, settled
from alpa_dejavu.pricing import Pricing
from alpa_dejavu.problem import Cluster, Contingency, Plan, SearchSpace, StagePlan, host_kinds
from alpa_dejavu.search import Candidate, proposed, simulated
from alpa_dejavu.slicing import Slicer

__all__ = ["with_contingencies"]


def with_contingencies(plan: Plan, chosen: Candidate, cluster: Cluster, slicer: Slicer) -> Plan:
    """The plan with what is run instead without each single host: of interchangeable hosts, one is planned for.

    A contingency takes all devices that are left. Where no choice of submeshes can, it leaves out as many whole hosts
    as it takes to have a power of two of them. A host without which nothing fits has none, and the plan says so.

    Args:
        plan: of the candidate, its seconds corrected or not.
        chosen: what the plan was made of.
        cluster: that it is for; a single host has nothing to fall back on.
        slicer: the search.
    """
    names, pricing = [host.name for host in cluster.hosts], chosen.table.pricing
    if len(names) == 1 or pricing is None:
        return plan
    state, kinds = layer_state(chosen.model), host_kinds(cluster)
    first = {kind: names[kinds.index(kind)] for kind in set(kinds)}
    planned = {kind: _without(lost, plan, chosen, cluster, slicer, not any(kinds)) for kind, lost in first.items()}
    found: dict[str, Contingency] = {}
    for lost, kind in zip(names, kinds, strict=True):
        fallback = planned[kind]
        if fallback is None:
            continue
        stages = _renamed(fallback.stages, lost, first[kind])
        left = without(cluster, [lost])
        if not any(kinds):
            stages = settled(stages, plan.stages, {host.name: host.num_devices for host in left.hosts}, state)
        used = {host for stage in stages for host in stage.hosts}
        unused = tuple(host.name for host in left.hosts if host.name not in used)
        found[lost] = Contingency(stages, fallback.step_s, moves(plan.stages, stages, left, state), unused)
    missing = [name for name in names if name not in found]
    notes = (*plan.notes, *([_note(missing, len(names))] if missing else []))
    return dataclasses.replace(plan, contingencies=found, notes=notes)


def _note(missing: list[str], count: int) -> str:
    which = "any one of its hosts" if len(missing) == count else " or ".join(missing)
    return f"nothing fits without {which}: there is no contingency for that loss"


def _renamed(stages: tuple[StagePlan, ...], lost: str, planned: str) -> tuple[StagePlan, ...]:
    """The stages without one host, of a plan without another of its kind."""
    return tuple(
        dataclasses.replace(stage, hosts=tuple(planned if host == lost else host for host in stage.hosts))
        for stage in stages
    )


def _without(
    lost: str, plan: Plan, chosen: Candidate, cluster: Cluster, slicer: Slicer, alike: bool
) -> Plan | None:
    """The best plan without a host; None if nothing fits."""
    hosts = [host.name for host in cluster.hosts if host.name != lost]
    whole = 2 ** ((len(hosts) - 1).bit_length() - 1) if len(hosts) > 1 else 0
    for count in dict.fromkeys([len(hosts), whole]):
        if not count:
            continue
        left = without(cluster, [lost, *hosts[count:]])
        table, space = _costs(left, chosen, alike and not cluster.shared)
        found = proposed(chosen.model, table, left, space, chosen.run, slicer)
        if found is not None:
            return _finished(simulated(found, left), left, plan)
    return None


def _finished(found: Candidate, cluster: Cluster, plan: Plan) -> Plan:
    made = finished_plan(
        found.slicing.stages, found.table, cluster, found.space, found.run, step_s=found.step_s,
        lower_bound_s=found.slicing.lower_bound_s, planning_s={},
    )  # fmt: skip
    if plan.correction is None:
        return made
    from alpa_dejavu.history import corrected

    return corrected(made, plan.correction)


def _costs(cluster: Cluster, chosen: Candidate, alike: bool) -> tuple[CostTable, SearchSpace]:
    """The costs on what is left; where hosts are alike, nearly all of them are what they were."""
    table, space, pricing = chosen.table, chosen.space, chosen.table.pricing
    assert pricing is not None, "looked at before"
    if not alike or np.isfinite(space.allowed_imbalance):
        fitting = [s for s, submesh in enumerate(space.submeshes) if submesh.num_hosts <= len(cluster.hosts)]
        submeshes, configs = tuple(space.submeshes[s] for s in fitting), tuple(space.configs[s] for s in fitting)
        space = SearchSpace(submeshes, configs, space.allowed_imbalance)
        prices = pricing.latency, pricing.communication
        return cost_table(chosen.model, cluster, space, chosen.run, *prices, table.margin), space
    if len(cluster.hosts) > 1:
        return table, space
    # What crosses from stage to stage stays within the one host.
    inside = Pricing(chosen.model, cluster, pricing.device, pricing.latency, pricing.communication)
    ahead, back = table.boundary_forward_s.copy(), table.boundary_backward_s.copy()
    for s, submesh in enumerate(space.submeshes):
        if submesh.num_hosts == 1:
            both = inside.boundary_s(submesh)
            ahead[:, :, s], back[:, :, s] = both[0][..., None], both[1][..., None]
    return dataclasses.replace(table, boundary_forward_s=ahead, boundary_backward_s=back), space
