"""The way through: layers and a cluster in, a plan out."""

from __future__ import annotations

import time

from alpa_dejavu._diagnosis import no_plan
from alpa_dejavu.communication import CommunicationModel, communication_model
from alpa_dejavu.cost_table import CostTable, cost_table
from alpa_dejavu.latency import LatencyModel, latency_model
from alpa_dejavu.placement import place
from alpa_dejavu.problem import Cluster, Model, Plan, Run, SearchSpace, Slicing, StageChoice, StagePlan
from alpa_dejavu.slicing import Slicer, slicer

__all__ = ["plan"]


def plan(
    model: Model,
    cluster: Cluster,
    space: SearchSpace,
    run: Run,
    *,
    slicing: str | Slicer = "dynamic",
    latency: str | LatencyModel = "analytic",
    communication: str | CommunicationModel = "alpha-beta",
) -> Plan:
    """The best plan that the slicer finds.

    Raises:
        NoPlanError: no plan fits; says what is missing where, and what would help.
    """
    started = time.perf_counter()
    table = cost_table(model, cluster, space, run, latency_model(latency), communication_model(communication))
    costed = time.perf_counter()
    search = slicer(slicing)
    sliced = search.slice(table.slicing_problem(cluster, space, run))
    if not sliced.found:
        raise no_plan(model, cluster, space, run, table, search)
    hosts = place([space.submeshes[stage.submesh] for stage in sliced.stages], cluster)
    return Plan(
        stages=tuple(
            _stage(choice, len(sliced.stages) - 1 - n, hosts[n], table, cluster, space, run)
            for n, choice in enumerate(sliced.stages)
        ),
        step_s=sliced.cost_s if cluster.shared else _step_s(sliced, table, run),
        lower_bound_s=sliced.lower_bound_s,
        num_micro_batches=run.num_micro_batches,
        schedule=run.schedule,
        cluster=cluster.name,
        planning_s={"cost table": costed - started, "slicing": sliced.seconds},
    )


def _step_s(sliced: Slicing, table: CostTable, run: Run) -> float:
    """Seconds of a whole step. Inference's objective is another one than its time."""
    costs = [float(table.costs_s[s.first, s.last, s.submesh, s.config]) for s in sliced.stages]
    once = sum(float(table.per_step_s[s.first, s.last, s.submesh, s.config]) for s in sliced.stages)
    return sum(costs) + (run.num_micro_batches - 1) * max(costs) + once


def _stage(
    choice: StageChoice,
    successors: int,
    hosts: tuple[int, ...],
    table: CostTable,
    cluster: Cluster,
    space: SearchSpace,
    run: Run,
) -> StagePlan:
    entry = (choice.first, choice.last, choice.submesh, choice.config)
    config = space.configs[choice.submesh][choice.config]
    memory = table.memory[choice.submesh][choice.config]
    assert config is not None, "a slicer chose an entry that the search space doesn't offer"
    assert memory is not None, "every config has its memory"
    return StagePlan(
        layers=(choice.first, choice.last),
        submesh=space.submeshes[choice.submesh],
        logical_mesh=config.shape,
        hosts=tuple(cluster.hosts[host].name for host in hosts),
        compute_s=float(table.compute_s[entry]),
        collective_s=float(table.collective_s[entry]),
        boundary_s=float(table.boundary_s[entry]),
        per_step_s=float(table.per_step_s[entry]),
        memory_bytes=float(memory.peak(run.in_flight(successors))[choice.first, choice.last]),
        memory_limit_bytes=table.memory_limit_bytes,
        options=dict(config.options),
    )
