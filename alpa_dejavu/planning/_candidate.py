"""Candidates: slicings of a model on a cluster, each with the step that a simulation of its schedule takes.

A slicer's objective is Alpa's closed form, which leaves out where transfers wait and how uneven stages interlock; so
plans are compared by their simulated step, whoever asks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import final

import numpy as np

from alpa_dejavu._slow_inside import takes_part_of_several
from alpa_dejavu._ties import least, ordered
from alpa_dejavu.cost_table import CostTable
from alpa_dejavu.device_order import device_order
from alpa_dejavu.placement import packings, place_stages
from alpa_dejavu.problem import Cluster, Model, NoPlanError, Run, SearchSpace, Slicing, SlicingProblem, StageChoice
from alpa_dejavu.simulate import StageTimes, Timeline, sending, simulate
from alpa_dejavu.slicing import Slicer

__all__ = [
    "Candidate", "Costs", "best_first", "host_names", "simulated", "sliced", "stage_times", "timeline_of",
]  # fmt: skip


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Costs:
    """A model in micro-batches on a cluster, and the costs of all stages that a plan of it may have.

    Attributes:
        model: the layers, of a micro-batch of the run.
        cluster: the hosts that stages may be on.
        space: the submeshes and configs that stages may have.
        run: the number of micro-batches, and the schedule.
        table: the costs of all stages, shape (L, L, S, C).
        exact: whether the model was traced at just this micro-batch; else it was scaled from another one.
        partial: whether the space lacks stages that a search would look at, as it has those of one plan alone.
    """

    model: Model
    cluster: Cluster
    space: SearchSpace
    run: Run
    table: CostTable
    exact: bool = True
    partial: bool = False

    @cached_property
    def problem(self) -> SlicingProblem:
        """The problem that a slicer is given."""
        return self.table.slicing_problem(self.cluster, self.space, self.run)

    def on(self, part: Cluster) -> Costs | None:
        """The same costs on some of the hosts, where nothing changes but their number; None: they are others there.

        They are partial where a stage on all hosts of the part is missing.
        """
        unlike = self.space.hosts is not None or self.cluster.shared or np.isfinite(self.space.allowed_imbalance)
        there = {host.name for host in self.cluster.hosts}
        if unlike or self.partial or len(part.hosts) < 2 or any(host.name not in there for host in part.hosts):
            return None
        chosen = [s for s, submesh in enumerate(self.space.submeshes) if submesh.num_hosts <= len(part.hosts)]
        space = self.space.part(chosen)
        whole = any(submesh.num_devices == part.num_devices for submesh in space.submeshes)
        table = self.table.part(chosen)
        return dataclasses.replace(self, cluster=part, space=space, table=table, partial=not whole)

    def sliced(self, slicer: Slicer, num_stages: int | None = None, devices: str | None = None) -> Candidate | None:
        """The slicer's best plan, simulated; None if it finds none.

        Args:
            slicer: the search.
            num_stages: exactly so many stages; None: any number.
            devices: "exactly" all, or "at most"; None: as the problem has it.
        """
        found: dict[tuple[StageChoice, ...], Slicing] = {}
        for problem in self._problems:
            if num_stages is not None and num_stages > min(problem.num_layers, problem.num_devices):
                continue
            asked = dataclasses.replace(problem, num_stages=num_stages, devices=devices or problem.devices)
            slicing = sliced(asked, self.space, self.cluster, slicer)
            if slicing.found:
                found.setdefault(slicing.stages, slicing)
        there = [simulated(Candidate(self, slicing)) for slicing in found.values()]
        return least(there, key=lambda one: one.step_s) if there else None

    @cached_property
    def _problems(self) -> list[SlicingProblem]:
        """The problem, and the same where transfers count as the closed form doesn't have them.

        On several alike hosts stages that find room in one host may be in one: which are neighbours within a host isn't
        known before they are placed, so once none of them is taken for such, and once all that may be. And where
        senders wait until the receiver has it all, a stage's time per micro-batch has its own sends in it.
        """
        if self.table.interstage is None or self.cluster.shared:
            return [self.problem]
        tables = [self.table]
        if self.space.hosts is None and len(self.cluster.hosts) > 1 and self.table.transfer is not None:
            near = self.table.transfer.table(self.space, near=True)
            tables.append(dataclasses.replace(self.table, interstage=near))
        waits = self.run.num_micro_batches > 1 and sending(self.run.schedule) == "blocking"
        return [
            table.slicing_problem(self.cluster, self.space, self.run, senders_wait=wait)
            for wait in ((False, True) if waits else (False,))
            for table in tables
        ]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A slicing by some costs.

    Attributes:
        costs: the costs that it was found in.
        slicing: the stages.
        timeline: the simulated step; None: it wasn't simulated.
        hosts: the hosts of each stage, by their index in the cluster; None: they are placed by the rule of `place`.
    """

    costs: Costs
    slicing: Slicing
    timeline: Timeline | None = None
    hosts: tuple[tuple[int, ...], ...] | None = None

    @property
    def stages(self) -> tuple[StageChoice, ...]:
        """The stages of the slicing."""
        return self.slicing.stages

    @property
    def cluster(self) -> Cluster:
        """The hosts that the candidate's costs are for, all of which it may use."""
        return self.costs.cluster

    @property
    def run(self) -> Run:
        """The number of micro-batches, and the schedule."""
        return self.costs.run

    @property
    def model(self) -> Model:
        """The layers, of a micro-batch of the run."""
        return self.costs.model

    @property
    def table(self) -> CostTable:
        """The costs of all stages."""
        return self.costs.table

    @property
    def space(self) -> SearchSpace:
        """The submeshes and configs that the slicing's stages name by their index."""
        return self.costs.space

    @cached_property
    def placed(self) -> tuple[tuple[int, ...], ...]:
        """The hosts of each stage, by their index in the cluster."""
        if self.hosts is not None:
            return self.hosts
        return tuple(place_stages(self.stages, self.space, self.cluster))

    @property
    def num_devices(self) -> int:
        """All devices that the stages take."""
        return sum(self.space.submeshes[stage.submesh].num_devices for stage in self.stages)

    @property
    def step_s(self) -> float:
        """Seconds of a step: simulated if it was, else by the closed form."""
        return self.slicing.cost_s if self.timeline is None else self.timeline.step_s


def best_first(found: Iterable[Candidate]) -> list[Candidate]:
    """The candidates, the shortest step first; of equal steps the one that was found first."""
    return ordered(found, key=lambda one: one.step_s)


def host_names(found: Candidate) -> list[tuple[str, ...]]:
    """The hosts of each stage, in the order that its mesh has them."""
    if found.hosts is not None:
        return [tuple(found.cluster.hosts[host].name for host in hosts) for hosts in found.hosts]
    names = []
    for stage, hosts in zip(found.stages, found.placed, strict=True):
        config = found.space.configs[stage.submesh][stage.config]
        assert config is not None, "a slicer chose an entry that the search space doesn't offer"
        order = device_order(found.cluster, hosts, config.shape)
        names.append(tuple(found.cluster.hosts[host].name for host in order))
    return names


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
        best = least(packed, key=lambda one: one.cost_s)
        return dataclasses.replace(best, lower_bound_s=min(found.lower_bound_s, best.cost_s))
    return found


def simulated(candidate: Candidate) -> Candidate:
    """The candidate with its timeline."""
    hosts = candidate.placed
    times = stage_times(candidate.table, candidate.stages, candidate.space, hosts)
    return dataclasses.replace(candidate, timeline=timeline_of(times, candidate.cluster, candidate.run))


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
    """The times and bytes of each stage that the simulation goes by; on unlike hosts, `hosts` says which ones."""
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
