"""Candidates: what the slicer proposes, and the step that the simulation of the schedule gives it.

The slicer's objective is Alpa's closed form, which leaves out where transfers wait and how uneven stages interlock; so
plans are compared by their simulated step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np

from alpa_dejavu._kinds import kinds_of
from alpa_dejavu._slow_inside import takes_part_of_several
from alpa_dejavu.cost_table import CostTable
from alpa_dejavu.placement import packings, place_stages
from alpa_dejavu.problem import Cluster, Model, NoPlanError, Run, SearchSpace, Slicing, SlicingProblem, StageChoice
from alpa_dejavu.simulate import StageTimes, Timeline, simulate
from alpa_dejavu.slicing import Slicer

__all__ = [
    "Candidate", "beside", "micro_batch_counts", "neighbours", "proposed", "simulated", "sliced", "stage_times",
    "timed", "timeline_of",
]  # fmt: skip


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A slicing with what it was found in, its simulated step, and, if they were given, the hosts of each stage."""

    model: Model
    table: CostTable
    space: SearchSpace
    run: Run
    slicing: Slicing
    timeline: Timeline | None = None
    hosts: tuple[tuple[int, ...], ...] | None = None

    def placed(self, cluster: Cluster) -> list[tuple[int, ...]]:
        """The hosts of each stage, by their index in the cluster."""
        return place_stages(self.slicing.stages, self.space, cluster) if self.hosts is None else list(self.hosts)

    @property
    def step_s(self) -> float:
        """Simulated if it was, else by the closed form."""
        return self.slicing.cost_s if self.timeline is None else self.timeline.step_s


def micro_batch_counts(batch: int, at_most: int = 10) -> tuple[int, ...]:
    """Numbers of micro-batches worth trying: a power of two of samples each, and the whole batch.

    >>> micro_batch_counts(24)
    (1, 3, 6, 12, 24)
    """
    counts = {batch // size for size in (2**n for n in range(batch.bit_length())) if batch % size == 0}
    return tuple(sorted({1, *sorted(counts, reverse=True)[:at_most]}))


def proposed(
    model: Model, table: CostTable, cluster: Cluster, space: SearchSpace, run: Run, slicer: Slicer
) -> Candidate | None:
    """The slicer's answer; None if nothing fits."""
    slicing = sliced(table.slicing_problem(cluster, space, run), space, cluster, slicer)
    return Candidate(model, table, space, run, slicing) if slicing.found else None


def sliced(problem: SlicingProblem, space: SearchSpace, cluster: Cluster, slicer: Slicer) -> Slicing:
    """The slicer's answer; if its submeshes don't pack into the hosts, the best one with some that always do."""
    found = slicer.slice(problem)
    mixed = space.hosts is not None or any(takes_part_of_several(submesh, cluster) for submesh in space.submeshes)
    if not mixed or not found.found:
        return found
    try:
        place_stages(found.stages, space, cluster)
    except NoPlanError:
        kept = [np.where(which[:, None], problem.costs_s, np.inf) for which in packings(space, cluster)]
        packed = [slicer.slice(dataclasses.replace(problem, costs_s=costs)) for costs in kept]
        best = min(packed, key=lambda one: one.cost_s)
        return dataclasses.replace(best, lower_bound_s=min(found.lower_bound_s, best.cost_s))
    return found


def neighbours(candidate: Candidate, cluster: Cluster, slicer: Slicer) -> list[Candidate]:
    """The best slicings of the same layers with half as many stages, one less and one more, simulated."""
    return [simulated(other, cluster) for other in beside(candidate, cluster, slicer)]


def beside(candidate: Candidate, cluster: Cluster, slicer: Slicer) -> list[Candidate]:
    """The best slicings of the same layers with half as many stages, one less and one more.

    Where the candidate leaves hosts unused, the best one that uses all of them comes too.
    """
    space = candidate.space
    problem = candidate.table.slicing_problem(cluster, candidate.space, candidate.run)
    length, most = len(candidate.slicing.stages), min(problem.num_layers, problem.num_devices)
    found = []
    for count in sorted({length // 2, length - 1, length + 1} - {0, length}):
        if count <= most:
            found.append(sliced(dataclasses.replace(problem, num_stages=count), space, cluster, slicer))
    if sum(space.submeshes[stage.submesh].num_devices for stage in candidate.slicing.stages) < problem.num_devices:
        found.append(sliced(dataclasses.replace(problem, devices="exactly"), space, cluster, slicer))
    return [dataclasses.replace(candidate, slicing=other, timeline=None, hosts=None) for other in found if other.found]


def simulated(candidate: Candidate, cluster: Cluster) -> Candidate:
    """The candidate with its timeline."""
    try:
        hosts = candidate.placed(cluster)
    except NoPlanError:
        if candidate.space.hosts is not None:
            raise
        hosts = None  # a neighbour that nobody has seen to that it packs; it isn't to be run
    times = stage_times(candidate.table, candidate.slicing.stages, candidate.space, hosts)
    return dataclasses.replace(candidate, timeline=timeline_of(times, cluster, candidate.run))


def timed(candidate: Candidate, cluster: Cluster) -> Candidate:
    """As plans for Alpa's step are timed: by Alpa's closed form, and simulated where hosts are unlike.

    There transfers from stage to stage differ, which the closed form takes for equally long.
    """
    return simulated(candidate, cluster) if any(kinds_of(cluster)) else candidate


def timeline_of(times: Sequence[StageTimes], cluster: Cluster, run: Run) -> Timeline:
    """A step of a pipeline on the devices of a cluster, which may share the cores of one CPU."""
    if cluster.cores is None:
        return simulate(times, run.num_micro_batches, run.schedule)
    # The table's seconds are those of a device that has its share of the cores; alone it is faster.
    alone = min(cluster.cores / cluster.num_devices, 1.0)
    return simulate(
        [_faster(stage, alone) for stage in times],
        run.num_micro_batches,
        run.schedule,
        sends="buffered",
        cores=float(cluster.cores),
    )


def _faster(stage: StageTimes, factor: float) -> StageTimes:
    """The stage with its computations taking `factor` of their time."""
    computing = (
        "forward_s", "backward_s", "per_step_s", "forward_collective_s", "backward_collective_s", "synchronisation_s",
    )  # fmt: skip
    return dataclasses.replace(stage, **{name: getattr(stage, name) * factor for name in computing})


def stage_times(
    table: CostTable, stages: Sequence[StageChoice], space: SearchSpace, hosts: Sequence[Sequence[int]] | None = None
) -> tuple[StageTimes, ...]:
    """What the simulation needs to know of each stage of a slicing, on hosts as `CostTable.taken_s` takes them."""
    taken = table.taken_s(stages, space, hosts)
    entries = [stage.entry for stage in stages]
    times = []
    for n, (stage, entry) in enumerate(zip(stages, entries, strict=True)):
        memory = table.memory[stage.submesh][stage.config]
        assert memory is not None, "a slicer chose an entry that the search space doesn't offer"
        where = stage.first, stage.last
        collective = float(table.collective_forward_s[entry]), float(table.collective_backward_s[entry])
        times.append(
            StageTimes(
                forward_s=float(table.compute_forward_s[entry]) + collective[0],
                backward_s=float(table.compute_backward_s[entry]) + collective[1],
                per_step_s=float(table.per_step_s[entry]),
                forward_send_s=taken[n + 1][0] if n + 1 < len(entries) else 0.0,
                backward_send_s=taken[n - 1][1] if n else 0.0,
                forward_collective_s=collective[0],
                backward_collective_s=collective[1],
                synchronisation_s=float(table.synchronisation_s[entry]),
                activation_bytes=float(memory.per_micro_batch[where]),
                resident_bytes=float(memory.resident[where]),
                temporary_bytes=float(memory.temporary[where]),
                memory_limit_bytes=float(table.memory_limit_bytes[stage.submesh]),
                devices=space.submeshes[stage.submesh].num_devices,
            )
        )
    return tuple(times)
