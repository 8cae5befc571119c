"""A slicing with its figures from the cost table: the plan that people and Alpa get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from alpa_dejavu._kinds import summary_of
from alpa_dejavu.cost_table import CostTable
from alpa_dejavu.device_order import device_order
from alpa_dejavu.placement import place_stages
from alpa_dejavu.problem import Cluster, Plan, PricedBy, Run, SearchSpace, StageChoice, StagePlan

__all__ = ["finished_plan"]


def finished_plan(
    stages: Sequence[StageChoice],
    table: CostTable,
    cluster: Cluster,
    space: SearchSpace,
    run: Run,
    *,
    step_s: float,
    lower_bound_s: float,
    planning_s: Mapping[str, float],
    model: str = "",
    batch: int | None = None,
    hosts: Sequence[Sequence[int]] | None = None,
    priced_by: PricedBy | None = None,
) -> Plan:
    """The plan of a slicing.

    Args:
        stages: what a slicer chose in the table.
        table: what it chose from.
        cluster: whose hosts the stages are put on.
        space: of the table.
        run: of the table.
        step_s: predicted seconds of a step.
        lower_bound_s: the slicer's.
        planning_s: seconds of the steps of planning so far.
        model: its name.
        batch: samples of a step.
        hosts: of each stage, by their index in the cluster; None: they are placed.
        priced_by: what it was chosen under; None: that isn't known.

    Raises:
        NoPlanError: the stages' submeshes don't fill the hosts.
    """
    placed = _ordered(stages, space, cluster) if hosts is None else hosts
    names = [tuple(cluster.hosts[host].name for host in chosen) for chosen in placed]
    taken = table.taken_s(stages, space, placed)
    last = len(stages) - 1
    return Plan(
        stages=tuple(
            _stage(s, names[n], taken[n], table, space, run.in_flight(last - n)) for n, s in enumerate(stages)
        ),
        step_s=step_s,
        lower_bound_s=lower_bound_s,
        num_micro_batches=run.num_micro_batches,
        schedule=run.schedule,
        cluster=cluster.name,
        planning_s=planning_s,
        model=model,
        batch=batch,
        hardware=summary_of(cluster),
        priced_by=priced_by,
    )


def _ordered(stages: Sequence[StageChoice], space: SearchSpace, cluster: Cluster) -> list[tuple[int, ...]]:
    """The hosts of each stage, in the order that its mesh has them."""
    found = []
    for stage, hosts in zip(stages, place_stages(stages, space, cluster), strict=True):
        config = space.configs[stage.submesh][stage.config]
        assert config is not None, "a slicer chose an entry that the search space doesn't offer"
        found.append(device_order(cluster, hosts, config.shape))
    return found


def _stage(
    choice: StageChoice,
    hosts: tuple[str, ...],
    taken_s: tuple[float, float],
    table: CostTable,
    space: SearchSpace,
    in_flight: int,
) -> StagePlan:
    entry = choice.entry
    where = choice.first, choice.last
    config = space.configs[choice.submesh][choice.config]
    memory = table.memory[choice.submesh][choice.config]
    assert config is not None, "a slicer chose an entry that the search space doesn't offer"
    assert memory is not None, "every config has its memory"
    return StagePlan(
        layers=where,
        submesh=space.submeshes[choice.submesh],
        logical_mesh=config.shape,
        hosts=hosts,
        compute_s=float(table.compute_s[entry]),
        collective_s=float(table.collective_s[entry]),
        boundary_s=sum(taken_s),
        per_step_s=float(table.per_step_s[entry]),
        memory_bytes=float(memory.peak(in_flight)[where]),
        memory_limit_bytes=float(table.memory_limit_bytes[choice.submesh]),
        options=dict(config.options),
        remat=config.remat,
        zero=config.zero,
        forward_s=float(table.compute_forward_s[entry] + table.collective_forward_s[entry]),
        backward_s=float(table.compute_backward_s[entry] + table.collective_backward_s[entry]),
        forward_collective_s=float(table.collective_forward_s[entry]),
        forward_boundary_s=taken_s[0],
        synchronisation_s=float(table.synchronisation_s[entry]),
        activation_bytes=float(memory.per_micro_batch[where]),
        resident_bytes=float(memory.resident[where]),
        temporary_bytes=float(memory.temporary[where]),
    )
