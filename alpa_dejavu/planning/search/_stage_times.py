"""The seconds of a slicing's stages, the step that they make of a schedule, and the chunks of schedules."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from alpa_dejavu.costs.overlap import NO_OVERLAP
from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.problem import Cluster, Run, SearchSpace, StageChoice
from alpa_dejavu.problem.run import ScheduleForm
from alpa_dejavu.schedules import SCHEDULES, kind_name
from alpa_dejavu.simulation.step import StageTimes, Timeline, simulate, step_seconds

_ONE_EACH = ScheduleForm()
_POSTED = 0.5
"""The share of a tensor's way through Ray that the stage which sends it can't compute in: it hands the tensor over, and
the receiver takes it."""
_COMPUTING = (
    "forward_s", "backward_s", "per_step_s", "forward_collective_s", "backward_collective_s", "synchronisation_s",
    "backward_weight_s",
)  # fmt: skip
_MOST_TASKS = 100_000
"""A step of more passes takes too long to be simulated for every cut."""


def timeline_of(times: Sequence[StageTimes], cluster: Cluster, run: Run) -> Timeline:
    """Returns the simulated training step of a pipeline. Of devices that share the cores of one CPU, the seconds are
    those of a device with its share; alone it is faster, and it does a half of its sends through Ray itself.
    """
    if cluster.cores is not None:
        alone, posted = cluster.core_share(cluster.num_devices), _POSTED
        times = [
            dataclasses.replace(
                stage,
                **{name: getattr(stage, name) * alone for name in _COMPUTING},
                forward_post_s=posted * stage.forward_send_s,
                backward_post_s=posted * stage.backward_send_s,
                forward_send_s=stage.forward_send_s - posted * stage.forward_send_s,
                backward_send_s=stage.backward_send_s - posted * stage.backward_send_s,
            )
            for stage in times
        ]
    return timeline_alone(times, cluster, run)


def step_of(times: Sequence[StageTimes], cluster: Cluster, run: Run) -> float:
    """Returns the seconds of the simulated training step of a pipeline."""
    if cluster.cores is not None:
        return timeline_of(times, cluster, run).step_s
    return step_seconds(times, run.num_micro_batches, run.schedule)


def timeline_alone(times: Sequence[StageTimes], cluster: Cluster, run: Run) -> Timeline:
    """Returns the simulated training step of a pipeline whose stages' seconds are those of devices with a core each."""
    if cluster.cores is None:
        return simulate(times, run.num_micro_batches, run.schedule)
    shared = {"cores": float(cluster.cores), "waiting": cluster.waiting}
    return simulate(times, run.num_micro_batches, run.schedule, sends="buffered", **shared)


def stage_times(
    table: CostTable,
    stages: Sequence[StageChoice],
    space: SearchSpace,
    hosts: Sequence[Sequence[int]] | None = None,
    form: ScheduleForm = _ONE_EACH,
) -> tuple[StageTimes, ...]:
    """Returns the seconds and bytes of each of a plan's stages, as the simulation of a step takes them, by the form of
    its schedule. Transfers are priced by each stage's hosts; without any, neighbouring stages are on different ones, of
    their submeshes' kinds.
    """
    interstage_s = table.interstage_s(stages, space, hosts, form.submesh_of(len(stages)))
    costs, times = table.stage_costs, []
    overlap = NO_OVERLAP if costs is None else costs.models.runtime.overlap
    for n, stage in enumerate(stages):
        entry, where, memory = stage.entry, (stage.first, stage.last), table.memory[stage.submesh][stage.config]
        assert memory is not None, "a slicer chose an entry that the search space doesn't offer"
        computing_back_s, by_weight_s = float(table.compute_backward_s[entry]), 0.0
        collective = float(table.collective_forward_s[entry]), float(table.collective_backward_s[entry])
        if form.splits and costs is not None:
            mesh = table.devices[stage.submesh], space.config(stage)
            by_weight_s = float(costs.by_weight_shares(*mesh)[where]) * computing_back_s
            if overlap.hides:  # behind the gradients of weights, which the schedule puts off
                collective = collective[0], collective[1] + float(costs.hidden_s(*mesh)[1][where])
        times.append(
            StageTimes(
                forward_s=float(table.compute_forward_s[entry]) + collective[0],
                backward_s=computing_back_s + collective[1],
                per_step_s=float(table.synchronisation_s[entry] + table.update_s[entry]),
                forward_send_s=interstage_s[n + 1][0] if n + 1 < len(stages) else 0.0,
                backward_send_s=interstage_s[n - 1][1] if n else 0.0,
                forward_collective_s=collective[0],
                backward_collective_s=collective[1],
                synchronisation_s=float(table.synchronisation_s[entry]),
                backward_weight_s=by_weight_s,
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


def impossible(run: Run, num_submeshes: int, num_layers: int) -> str:
    """Returns in a few words why so many submeshes can't run so many layers by a run's schedule; empty if they can."""
    chunks = run.form.chunks
    if num_submeshes * chunks > num_layers:
        return f"{num_layers} layers are too few for {num_submeshes * chunks} stages"
    if num_submeshes == 1 and chunks > 1:
        return "one submesh has no pipeline"
    if 3 * num_submeshes * chunks * run.num_micro_batches > _MOST_TASKS:
        return "it has too many passes to be simulated for every cut"
    check = SCHEDULES[kind_name(run.schedule)].check
    try:
        if check is not None:
            check(num_submeshes, run.num_micro_batches)
    except ValueError as error:
        return str(error).partition(";")[0]
    return ""


def chunks_of(table: CostTable, submeshes: Sequence[StageChoice], run: Run) -> tuple[StageChoice, ...]:
    """Returns the stages of a run's schedule with several on each submesh, cut so that the slowest takes least; there
    is a stage for each submesh, in order, whose layers don't matter.
    """
    layers, form = len(table.offered), run.form
    on = [submeshes[n] for n in form.submesh_of(len(submeshes) * form.chunks)]
    parts = table.compute_forward_s, table.compute_backward_s, table.collective_forward_s, table.collective_backward_s
    least = np.full((len(on) + 1, layers + 1), np.inf)
    least[0, 0] = 0.0
    came = np.zeros_like(least, dtype=np.int64)
    for n, choice in enumerate(on):
        own = np.asarray(sum(part[:, :, choice.submesh, choice.config] for part in parts))
        for end in range(n + 1, layers - (len(on) - n) + 2):
            slowest = np.maximum(least[n, :end], own[:end, end - 1])
            came[n + 1, end] = int(slowest.argmin())
            least[n + 1, end] = slowest[came[n + 1, end]]
    cut = [layers]
    for n in range(len(on), 0, -1):
        cut.append(int(came[n, cut[-1]]))
    cut.reverse()
    return tuple(dataclasses.replace(choice, first=cut[n], last=cut[n + 1] - 1) for n, choice in enumerate(on))


def needed_bytes(table: CostTable, stages: Sequence[StageChoice], step: Timeline) -> tuple[float, ...]:
    """Returns the bytes of each device of each submesh that a simulated step needs at most, by the table's margin."""
    times = []
    for choice, stage in zip(stages, step.stages, strict=True):
        memory, where = table.memory[choice.submesh][choice.config], (choice.first, choice.last)
        assert memory is not None, "every config has its memory"
        needed = table.margin.needed(memory)
        times.append(
            dataclasses.replace(
                stage,
                activation_bytes=float(needed.per_micro_batch[where]),
                resident_bytes=float(needed.resident[where]),
                temporary_bytes=float(needed.temporary[where]),
            )
        )
    return dataclasses.replace(step, stages=tuple(times)).peak_bytes
