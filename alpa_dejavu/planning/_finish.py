"""A candidate as the plan that people and Alpa get, with all of its figures."""

from __future__ import annotations

import dataclasses

from alpa_dejavu.clusters.host_classes import summary_of
from alpa_dejavu.planning._candidate import Candidate, host_names
from alpa_dejavu.planning.task import PlanningTask
from alpa_dejavu.problem import Plan, StageChoice, StagePlan

__all__ = ["finished_plan"]


def finished_plan(task: PlanningTask, found: Candidate) -> Plan:
    """Returns a candidate's finished plan for Alpa and for people, with the hosts, seconds and bytes of each stage.

    Args:
        task: the planning task that the plan is for.
        found: the simulated candidate, on all hosts of the task's cluster or on some.

    Raises:
        NoPlanError: the stages' submeshes don't fill the hosts.
    """
    names = host_names(found)
    numbers = {host.name: n for n, host in enumerate(found.cluster.hosts)}
    taken = found.table.interstage_s(found.stages, found.space, [[numbers[name] for name in each] for each in names])
    last = len(found.stages) - 1
    free_share = max(map(task.margin.free_share_of, task.cluster.hosts))
    return Plan(
        stages=tuple(
            _stage(found, stage, names[n], taken[n], found.run.in_flight(last - n))
            for n, stage in enumerate(found.stages)
        ),
        step_s=found.step_s,
        lower_bound_s=found.slicing.lower_bound_s,
        num_micro_batches=found.run.num_micro_batches,
        schedule=found.run.schedule,
        cluster=task.cluster.name,
        planning_s={},
        model=task.source.name,
        batch=task.batch,
        hardware=summary_of(task.cluster),
        priced_by=task.priced_by and dataclasses.replace(task.priced_by, margin=free_share),
    )


def _stage(
    found: Candidate, choice: StageChoice, hosts: tuple[str, ...], interstage_s: tuple[float, float], in_flight: int
) -> StagePlan:
    table, space, entry, where = found.table, found.space, choice.entry, (choice.first, choice.last)
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
        boundary_s=sum(interstage_s),
        per_step_s=float(table.per_step_s[entry]),
        memory_bytes=float(memory.peak(in_flight)[where]),
        memory_limit_bytes=float(table.memory_limit_bytes[choice.submesh]),
        options=dict(config.options),
        remat=config.remat,
        zero=config.zero,
        forward_s=float(table.compute_forward_s[entry] + table.collective_forward_s[entry]),
        backward_s=float(table.compute_backward_s[entry] + table.collective_backward_s[entry]),
        forward_collective_s=float(table.collective_forward_s[entry]),
        forward_boundary_s=interstage_s[0],
        synchronisation_s=float(table.synchronisation_s[entry]),
        activation_bytes=float(memory.per_micro_batch[where]),
        resident_bytes=float(memory.resident[where]),
        temporary_bytes=float(memory.temporary[where]),
    )
