"""A candidate as the plan that people and Alpa get, with all of its figures."""

from __future__ import annotations

import dataclasses

from alpa_dejavu.clusters.host_classes import summary_of
from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.layers.models import is_marked
from alpa_dejavu.planning.search._candidate import Candidate, host_names
from alpa_dejavu.planning.task import PlanningTask
from alpa_dejavu.problem import MeshConfig, Plan, StageChoice, StageOffload, StagePlan
from alpa_dejavu.problem.run import ALPA_SCHEDULES

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
    numbers = found.cluster.host_numbers
    hosts = [[numbers[name] for name in each] for each in names]
    taken = found.table.interstage_s(found.stages, found.space, hosts, found.submesh_of)
    peaks = _peaks(found)
    by_weight = [0.0] * len(found.stages)
    if found.timeline is not None and found.run.form.splits:
        by_weight = [stage.backward_weight_s for stage in found.timeline.stages]
    free_share = max(map(task.margin.free_share_of, task.cluster.hosts))
    return Plan(
        stages=tuple(
            _stage(found, stage, names[n], taken[n], peaks[n], by_weight[n], len(found.stages) - 1 - n)
            for n, stage in enumerate(found.stages)
        ),
        step_s=found.step_s,
        lower_bound_s=min(found.slicing.lower_bound_s, found.step_s) if found.run.schedule in ALPA_SCHEDULES else 0.0,
        num_micro_batches=found.run.num_micro_batches,
        schedule=found.run.schedule,
        runs_on_alpa=found.run.schedule in ALPA_SCHEDULES
        and not task.prices.models.runtime.overlap.streams
        and not any(one.offload.any or not one.plain for one in map(found.space.config, found.stages)),
        cluster=task.cluster.name,
        planning_s={},
        model=task.source.name,
        batch=task.batch,
        layer_option="manual" if is_marked(task.source.name) else "auto",
        hardware=summary_of(task.cluster),
        priced_by=task.priced_by and dataclasses.replace(task.priced_by, margin=free_share),
    )


def _peaks(found: Candidate) -> list[float]:
    """Returns for each stage the peak of memory of each of its devices: by the numbers of micro-batches in flight in
    Alpa's schedules, and else by the simulated step.
    """
    if found.run.schedule not in ALPA_SCHEDULES:
        step = found.timeline
        assert step is not None, "it was simulated"
        most = step.peak_bytes
        return [most[submesh] for submesh in found.submesh_of]
    peaks, last = [], len(found.stages) - 1
    for n, stage in enumerate(found.stages):
        memory = found.table.memory[stage.submesh][stage.config]
        assert memory is not None, "every config has its memory"
        peaks.append(float(memory.peak(found.run.in_flight(last - n))[stage.first, stage.last]))
    return peaks


def _stage(
    found: Candidate,
    choice: StageChoice,
    hosts: tuple[str, ...],
    interstage_s: tuple[float, float],
    peak_bytes: float,
    by_weight_s: float,
    successors: int,
) -> StagePlan:
    table, space, entry, where = found.table, found.space, choice.entry, (choice.first, choice.last)
    config = space.config(choice)
    memory = table.memory[choice.submesh][choice.config]
    assert memory is not None, "every config has its memory"
    hidden_s, hidden_per_step_s = _hidden_s(table, choice, config)
    return StagePlan(
        layers=where,
        submesh=space.submeshes[choice.submesh],
        logical_mesh=config.shape,
        hosts=hosts,
        compute_s=float(table.compute_s[entry]),
        collective_s=float(table.collective_s[entry]),
        boundary_s=sum(interstage_s),
        per_step_s=float(table.per_step_s[entry]),
        memory_bytes=peak_bytes,
        memory_limit_bytes=float(table.memory_limit_bytes[choice.submesh]),
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
        offload=_offload(found, choice, config, successors) if config.offload.any else None,
        hidden_s=hidden_s,
        hidden_per_step_s=hidden_per_step_s,
        context_parallel=config.context_parallel,
        expert_parallel=config.expert_parallel,
        sharded=config.sharded,
        memory_parts=_parts(table, choice, config, peak_bytes),
    )


def _parts(table: CostTable, choice: StageChoice, config: MeshConfig, peak_bytes: float) -> dict[str, float]:
    """Returns what a stage's peak is made of, by name; nothing where the division knows no parts, or some of them are
    offloaded.
    """
    memory = table.memory[choice.submesh][choice.config]
    if table.stage_costs is None or memory is None or config.offload.any:
        return {}
    where = choice.first, choice.last
    kept = float(memory.per_micro_batch[where])
    in_flight = (peak_bytes - float((memory.resident + memory.temporary)[where])) / kept if kept > 0 else 0.0
    parts = table.stage_costs.division(config).parts(config.remat)
    return {
        one.name: float(one.num_bytes[where]) * (in_flight if one.kind == "per_micro_batch" else 1.0) for one in parts
    }


def _hidden_s(table: CostTable, choice: StageChoice, config: MeshConfig) -> tuple[float, float]:
    """Returns the seconds of a stage's collectives that hide behind computing: of a micro-batch, and of a step."""
    if table.stage_costs is None:
        return 0.0, 0.0
    hidden = table.stage_costs.hidden_s(table.devices[choice.submesh], config)[:, choice.first, choice.last]
    return float(hidden[:2].sum()), float(hidden[2]) * (1 - config.offload.gradients)


def _offload(found: Candidate, choice: StageChoice, config: MeshConfig, successors: int) -> StageOffload:
    """Returns what the offload of a stage that so many follow takes of its hosts, and what it adds to the step."""
    table, where = found.table, (choice.first, choice.last)
    memory, costs, devices = table.memory[choice.submesh][choice.config], table.stage_costs, table.devices
    assert memory is not None, "every config has its memory"
    assert memory.elsewhere is not None, "a config that offloads keeps something elsewhere"
    assert costs is not None, "a table that was priced keeps its prices"
    limits = table.limits(choice.submesh)
    added = costs.offload_s(devices[choice.submesh], config)[:, choice.first, choice.last]
    forward_s, backward_s, step_s = added.tolist()
    return StageOffload(
        config.offload,
        host_bytes=float(memory.elsewhere.peak(found.run.in_flight(successors))[where]),
        host_limit_bytes=limits.host_bytes,
        nvme_bytes=float(memory.elsewhere.nvme[where]),
        nvme_limit_bytes=limits.nvme_bytes,
        forward_s=forward_s,
        backward_s=backward_s,
        step_s=step_s,
    )
