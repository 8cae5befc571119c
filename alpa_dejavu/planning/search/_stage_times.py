"""The seconds of a slicing's stages, and the step that they make of a schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from alpa_dejavu.costs.overlap import NO_OVERLAP
from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.problem import Cluster, Run, SearchSpace, StageChoice
from alpa_dejavu.problem.run import ScheduleForm
from alpa_dejavu.schedules import Schedule
from alpa_dejavu.simulation.step import StageTimes, Timeline, simulate

__all__ = ["stage_times", "timeline_alone", "timeline_of"]

_ONE_EACH = ScheduleForm()
_POSTED = 0.5
"""The share of a tensor's way through Ray that the stage which sends it can't compute in: it hands the tensor over, and
the receiver takes it."""


def timeline_of(
    times: Sequence[StageTimes], cluster: Cluster, run: Run, schedule: Schedule | None = None
) -> Timeline:
    """Returns the simulated training step of a pipeline, with what each stage does when.

    Args:
        times: the seconds and bytes of each stage.
        cluster: the cluster that it runs on, whose devices may share the cores of one CPU.
        run: the number of micro-batches, and the schedule.
        schedule: another schedule for as many micro-batches; None: the run's.
    """
    if cluster.cores is not None:
        # The table's seconds are those of a device that has its share of the cores; alone it is faster.
        alone = cluster.core_share(cluster.num_devices)
        times = [_posting(_faster(stage, alone)) for stage in times]
    return timeline_alone(times, cluster, run, schedule)


def timeline_alone(
    times: Sequence[StageTimes], cluster: Cluster, run: Run, schedule: Schedule | None = None
) -> Timeline:
    """Returns the simulated training step of a pipeline whose stages' seconds are those of devices with a core each, by
    the run's schedule, or another one if given.
    """
    if cluster.cores is None:
        return simulate(times, run.num_micro_batches, schedule or run.schedule)
    shared = {"cores": float(cluster.cores), "waiting": cluster.waiting}
    return simulate(times, run.num_micro_batches, schedule or run.schedule, sends="buffered", **shared)


def _faster(stage: StageTimes, factor: float) -> StageTimes:
    """The stage with its computations taking `factor` of their time."""
    computing = (
        "forward_s", "backward_s", "per_step_s", "forward_collective_s", "backward_collective_s", "synchronisation_s",
        "backward_weight_s",
    )  # fmt: skip
    return dataclasses.replace(stage, **{name: getattr(stage, name) * factor for name in computing})


def _posting(stage: StageTimes) -> StageTimes:
    """The stage with its sends through Ray, of which it does a half itself."""
    ahead, back = (_POSTED * seconds for seconds in (stage.forward_send_s, stage.backward_send_s))
    return dataclasses.replace(
        stage,
        forward_post_s=ahead,
        backward_post_s=back,
        forward_send_s=stage.forward_send_s - ahead,
        backward_send_s=stage.backward_send_s - back,
    )


def stage_times(
    table: CostTable,
    stages: Sequence[StageChoice],
    space: SearchSpace,
    hosts: Sequence[Sequence[int]] | None = None,
    form: ScheduleForm = _ONE_EACH,
) -> tuple[StageTimes, ...]:
    """Returns the seconds and bytes of each of a plan's stages, as the simulation of a step takes them.

    Args:
        table: the costs of all stages.
        stages: the stages of the plan.
        space: the submeshes and configs of the table.
        hosts: the indices of each stage's hosts, by which transfers are priced; None: neighbouring stages are taken to
            be on different hosts, of the kinds that their submeshes have.
        form: the form of the schedule: which stages share a submesh, and whether backward passes are split.
    """
    taken = table.interstage_s(stages, space, hosts, form.submesh_of(len(stages)))
    entries = [stage.entry for stage in stages]
    overlap = NO_OVERLAP if table.stage_costs is None else table.stage_costs.models.runtime.overlap
    times = []
    for n, (stage, entry) in enumerate(zip(stages, entries, strict=True)):
        memory = table.memory[stage.submesh][stage.config]
        assert memory is not None, "a slicer chose an entry that the search space doesn't offer"
        where = stage.first, stage.last
        collective = float(table.collective_forward_s[entry]), float(table.collective_backward_s[entry])
        if overlap.hides and form.splits:
            collective = collective[0], collective[1] + _hidden_backward_s(table, stage, space)
        computing_back_s = float(table.compute_backward_s[entry])
        times.append(
            StageTimes(
                forward_s=float(table.compute_forward_s[entry]) + collective[0],
                backward_s=computing_back_s + collective[1],
                per_step_s=float(table.per_step_s[entry]),
                forward_send_s=taken[n + 1][0] if n + 1 < len(entries) else 0.0,
                backward_send_s=taken[n - 1][1] if n else 0.0,
                forward_collective_s=collective[0],
                backward_collective_s=collective[1],
                synchronisation_s=float(table.synchronisation_s[entry]),
                backward_weight_s=_by_weight_share(table, stage, space) * computing_back_s if form.splits else 0.0,
                activation_bytes=float(memory.per_micro_batch[where]),
                resident_bytes=float(memory.resident[where]),
                temporary_bytes=float(memory.temporary[where]),
                memory_limit_bytes=float(table.memory_limit_bytes[stage.submesh]),
                devices=space.submeshes[stage.submesh].num_devices,
                streams=overlap.streams,
                apart=space.submeshes[stage.submesh].num_hosts > 1,
            )
        )
    return tuple(times)


def _hidden_backward_s(table: CostTable, stage: StageChoice, space: SearchSpace) -> float:
    """Returns the seconds of a stage's collectives that hide in a backward pass: behind the gradients of weights, which
    a schedule that splits the pass puts off.
    """
    config = space.config(stage)
    assert table.stage_costs is not None, "a table that was priced keeps its prices"
    hidden = table.stage_costs.hidden_s(table.devices[stage.submesh], config)
    return float(hidden[1, stage.first, stage.last])


def _by_weight_share(table: CostTable, stage: StageChoice, space: SearchSpace) -> float:
    """Returns the share of a stage's backward pass that only gradients of weights need; 0 where it isn't known, since
    the table has no model of its costs.
    """
    if table.stage_costs is None:
        return 0.0
    shares = table.stage_costs.by_weight_shares(table.devices[stage.submesh], space.config(stage))
    return float(shares[stage.first, stage.last])
