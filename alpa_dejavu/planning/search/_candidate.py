"""Candidates: slicings of a model on a cluster, each with the step that a simulation of its schedule takes.

A slicer's objective is Alpa's closed form, which leaves out where transfers wait and how uneven stages interlock; so
plans are compared by their simulated step, whoever asks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import final

import numpy as np

from alpa_dejavu._util.ties import least, ordered
from alpa_dejavu.clusters.device_order import device_order
from alpa_dejavu.clusters.host_classes import kinds_of
from alpa_dejavu.clusters.placement import place_stages
from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.planning.search._packing import host_by_host, packed
from alpa_dejavu.planning.search._stage_times import (
    chunks_of,
    impossible,
    needed_bytes,
    stage_times,
    step_of,
    timeline_of,
)
from alpa_dejavu.problem import (
    Cluster,
    MeshConfig,
    Model,
    NoPlanError,
    Run,
    SearchSpace,
    Slicing,
    SlicingProblem,
    StageChoice,
    StagePlan,
)
from alpa_dejavu.problem.run import ALPA_SCHEDULES
from alpa_dejavu.simulation.step import StageTimes, Timeline, sending
from alpa_dejavu.slicing import Dynamic, Slicer


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Costs:
    """A model cut into layers and micro-batches on a cluster, with the costs of all stages that a plan may have."""

    model: Model  # the layers, of a micro-batch of the run
    cluster: Cluster  # the hosts that stages may be on
    space: SearchSpace  # the submeshes and configs that stages may have
    run: Run  # the number of micro-batches, and the schedule
    table: CostTable  # the costs of all stages, shape (L, L, S, C) for layers i..j on each submesh with each config
    exact: bool = True  # whether the model was traced at just this micro-batch; else it was scaled from another one
    partial: bool = False  # whether the space lacks stages that a search would look at, as where it has one plan's

    @property
    def problem(self) -> SlicingProblem:
        return _problem(self)

    def on(self, part: Cluster) -> Costs | None:
        """Returns the costs on a part of the cluster, partial if a submesh of all is missing; None if they change."""
        names = {host.name for host in self.cluster.hosts}
        if (
            self.partial
            or self.cluster.shared
            or self.space.hosts is not None
            or np.isfinite(self.space.allowed_imbalance)
            or self.cluster.reduction_servers  # of which a stage on fewer hosts has more
            or self.space.families  # a stage on all of these hosts alone may have more configs
            or len(part.hosts) < 2
            or any(host.name not in names for host in part.hosts)
        ):
            return None
        chosen = [s for s, submesh in enumerate(self.space.submeshes) if submesh.num_hosts <= len(part.hosts)]
        space = self.space.part(chosen)
        whole = any(submesh.num_devices == part.num_devices for submesh in space.submeshes)
        return dataclasses.replace(self, cluster=part, space=space, table=self.table.part(chosen), partial=not whole)

    def under(self, schedule: str) -> Costs:
        """Returns the same stage costs for another schedule, under which stages keep more or fewer micro-batches."""
        if schedule == self.run.schedule:
            return self
        run, table = Run(self.run.num_micro_batches, schedule), self.table
        successors = table.successors(run, table.margin, table.usable_bytes)
        return dataclasses.replace(self, run=run, table=dataclasses.replace(table, max_n_succ_stages=successors))

    def sliced(self, slicer: Slicer, num_stages: int | None = None, devices: str | None = None) -> Candidate | None:
        """Returns the best plan that a slicer finds by these costs, simulated, with exactly `num_stages` if given; None
        if none. `devices` is "exactly" (all are used), "at most" (some may be left out), or None (as the search space
        has it).
        """
        if num_stages is not None and num_stages not in self.possible:
            return None
        candidates: dict[tuple[object, ...], Candidate] = {}
        # The closed form counts sends once a step, for the stage that receives; if senders wait, stages are also cut
        # with each one's own sends in its seconds, and a simulation says which is nearer. Of unlike hosts what is sent
        # may take most of a step, and the former is far off.
        waiting = [_problem(self, senders_wait=True)] if self._senders_wait else []
        unlike = self.space.hosts is not None and any(kinds_of(self.cluster))
        for problem in waiting if waiting and unlike else (self.problem, *waiting):
            first = self._packed(problem, slicer, num_stages, devices)
            near = () if len(first.stages) in self.possible else self._near(len(first.stages))
            for slicing in (first, *(self._packed(problem, slicer, number, devices) for number in near)):
                if slicing.found:
                    candidates.setdefault((slicing.stages, None), Candidate(self, slicing))
        if not unlike and (filled := self.filled(slicer, num_stages, devices)) is not None:
            candidates.setdefault((filled.stages, filled.hosts), filled)
        timed = [
            simulation for candidate in candidates.values() if (simulation := fitting(candidate, slicer)) is not None
        ]
        if not timed and candidates and self.run.schedule not in ALPA_SCHEDULES:
            numbers = {len(candidate.slicing.stages) for candidate in candidates.values()}
            timed = list(self._sliced_by_memory(slicer, numbers, devices))
        return least(timed, key=_step_s) if timed else None

    def _packed(self, problem: SlicingProblem, slicer: Slicer, num_stages: int | None, devices: str | None) -> Slicing:
        return packed(_constrained(problem, num_stages, devices), self.space, self.cluster, slicer)

    def _sliced_by_memory(self, slicer: Slicer, numbers: Collection[int], devices: str | None) -> Iterator[Candidate]:
        """Yields the best plans with so many submeshes, or half or twice as many, by what each keeps in memory then: in
        schedules that Alpa hasn't, all submeshes keep about as many micro-batches as the first one.
        """
        for number in sorted({n * times // 2 for n in numbers for times in (1, 2, 4)} & set(self.possible)):
            successors = self.table.holding(self.run.in_flight(number - 1))
            costs = dataclasses.replace(self, table=dataclasses.replace(self.table, max_n_succ_stages=successors))
            slicing = self._packed(costs.problem, slicer, number, devices)
            if slicing.found and (candidate := fitting(Candidate(self, slicing), slicer)) is not None:
                yield candidate

    @cached_property
    def possible(self) -> range | tuple[int, ...]:
        """Returns the numbers of submeshes on which the run's schedule is possible with so many layers."""
        numbers = range(1, min(self.model.num_layers, self.cluster.num_devices) + 1)
        if self.run.schedule in ALPA_SCHEDULES:
            return numbers
        return tuple(n for n in numbers if not impossible(self.run, n, self.model.num_layers))

    def _near(self, number: int) -> tuple[int, ...]:
        """The possible numbers of submeshes next to one that isn't, below it and above it; none without a slicing."""
        below, above = [n for n in self.possible if n < number], [n for n in self.possible if n > number]
        return (*below[-1:], *above[:1]) if number else ()

    def filled(self, slicer: Slicer, num_stages: int | None = None, devices: str | None = None) -> Candidate | None:
        """Returns the best plan whose stages fill one host after the other, not simulated; None if there is none, or if
        the slicer isn't the exact dynamic program. On unlike hosts this takes much longer than placing stages
        afterwards.
        """
        if not isinstance(slicer, Dynamic):
            return None
        by_hosts = host_by_host(self.problem, self.table, self.cluster, self.space, self._senders_wait)
        if by_hosts is None:
            return None
        answer = by_hosts.answer(slicer.slice(_constrained(by_hosts.problem, num_stages, devices)))
        return None if answer is None else _by_rule(Candidate(self, *answer))

    @property
    def _senders_wait(self) -> bool:
        """Whether a stage can't compute while it sends, so that a micro-batch takes its sends as well."""
        costs = self.table.stage_costs
        streams = costs is not None and costs.models.runtime.overlap.streams
        if self.table.interstage is None or self.cluster.shared or streams:
            return False
        return self.run.num_micro_batches > 1 and sending(self.run.schedule) == "blocking"


@functools.lru_cache(maxsize=2)
def _problem(costs: Costs, senders_wait: bool = False) -> SlicingProblem:
    """The problem of slicing by some costs; those of all shapes of a search together would take too much memory."""
    return costs.table.slicing_problem(costs.cluster, costs.space, costs.run, senders_wait=senders_wait)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A candidate plan: layers cut into stages on submeshes, with the costs by which they were cut."""

    costs: Costs  # the model, the cluster, and the costs of all possible stages
    slicing: Slicing  # the stages that were chosen, one for each submesh
    hosts: tuple[tuple[int, ...], ...] | None = None  # of each submesh, by index; None: Alpa's default placement
    simulated_s: float | None = None  # the seconds of the simulated step; None: it wasn't simulated
    chunks: tuple[StageChoice, ...] = ()  # the stages in the order of the layers, where submeshes have several

    @property
    def stages(self) -> tuple[StageChoice, ...]:
        return self.chunks or self.slicing.stages

    @property
    def submesh_of(self) -> tuple[int, ...]:
        """Returns the index of each stage's submesh among the candidate plan's: several stages may share one."""
        return self.run.form.submesh_of(len(self.chunks)) if self.chunks else tuple(range(len(self.slicing.stages)))

    @property
    def cluster(self) -> Cluster:
        return self.costs.cluster

    @property
    def run(self) -> Run:
        return self.costs.run

    @property
    def model(self) -> Model:
        return self.costs.model

    @property
    def table(self) -> CostTable:
        return self.costs.table

    @property
    def space(self) -> SearchSpace:
        return self.costs.space

    @cached_property
    def placed(self) -> tuple[tuple[int, ...], ...]:
        """Returns for each stage of the candidate plan its hosts, by their index in the cluster."""
        hosts = self.hosts or place_stages(self.slicing.stages, self.space, self.cluster)
        return tuple(hosts[submesh] for submesh in self.submesh_of)

    @property
    def num_devices(self) -> int:
        return sum(self.space.submeshes[stage.submesh].num_devices for stage in self.slicing.stages)

    @property
    def step_s(self) -> float:
        """Returns the seconds of a step of the candidate plan: simulated, or else by the slicer's closed form."""
        return self.slicing.cost_s * self.run.form.bubble if self.simulated_s is None else self.simulated_s

    @cached_property
    def times(self) -> tuple[StageTimes, ...]:
        """Returns the seconds and bytes of each stage of the candidate plan, as a simulation takes them."""
        return stage_times(self.table, self.stages, self.space, self.placed, self.run.form)

    @property
    def timeline(self) -> Timeline:
        """Returns the simulated step of the candidate plan, with what each stage does when."""
        return dataclasses.replace(timeline_of(self.times, self.cluster, self.run), step_s=self.step_s)


def _step_s(candidate: Candidate) -> float:
    return candidate.step_s


def alone(candidate: Candidate) -> Candidate:
    """Returns a candidate plan whose costs are those of its own submeshes alone, so that it takes little room."""
    chosen, costs = sorted({stage.submesh for stage in candidate.stages}), candidate.costs
    table, space = costs.table.part(chosen), costs.space.part(chosen)

    def renamed(stages: Iterable[StageChoice]) -> tuple[StageChoice, ...]:
        return tuple(dataclasses.replace(stage, submesh=chosen.index(stage.submesh)) for stage in stages)

    costs = dataclasses.replace(costs, space=space, table=table, partial=True)
    slicing = dataclasses.replace(candidate.slicing, stages=renamed(candidate.slicing.stages))
    return dataclasses.replace(candidate, costs=costs, slicing=slicing, chunks=renamed(candidate.chunks))


def best_first(candidates: Iterable[Candidate | None]) -> list[Candidate]:
    """Returns candidate plans, but None, the shortest step first; equal ones keep their order."""
    return ordered((candidate for candidate in candidates if candidate is not None), key=_step_s)


def config_of_stage(stage: StagePlan) -> MeshConfig:
    """Returns the config of a plan's stage: its logical mesh, auto-sharding options, remat, ZeRO level and offload."""
    across, along = (*stage.logical_mesh, 1)[:2]
    options, offload = dict(stage.options), stage.offloaded
    return MeshConfig(
        (across, along), across, along, options, stage.remat, stage.zero, offload, stage.context_parallel,
        stage.expert_parallel, stage.sharded, stage.expert_tensor, stage.remat_share,
    )  # fmt: skip


def host_names(candidate: Candidate) -> list[tuple[str, ...]]:
    """Returns for each stage of a candidate plan the names of its hosts, in the order that its mesh has them."""
    orders = candidate.placed
    if candidate.hosts is None:
        orders = tuple(
            tuple(device_order(candidate.cluster, hosts, candidate.space.config(stage).shape))
            for stage, hosts in zip(candidate.stages, candidate.placed, strict=True)
        )
    return [tuple(candidate.cluster.hosts[host].name for host in order) for order in orders]


def _constrained(problem: SlicingProblem, num_stages: int | None, devices: str | None) -> SlicingProblem:
    return dataclasses.replace(problem, num_stages=num_stages, devices=devices or problem.devices)


def _by_rule(candidate: Candidate) -> Candidate:
    """The candidate on the hosts that Alpa gives its stages by itself, where it takes no longer there."""
    rule = dataclasses.replace(candidate, hosts=None)
    with contextlib.suppress(NoPlanError):
        own, by_rule = (stage_times(plan.table, plan.stages, plan.space, plan.placed) for plan in (candidate, rule))
        return rule if own == by_rule else candidate
    return candidate


def fitting(candidate: Candidate, slicer: Slicer | None = None, elsewhere_cut: bool = False) -> Candidate | None:
    """Returns a candidate with its simulated step; None if its schedule isn't possible, or takes more memory than there
    is. A slicer that remembers its answers remembers the step.

    Slicers count the memory of Alpa's schedules as it is, and of others too little; so under Alpa's it is checked only
    where layers weren't cut by what the schedule keeps.
    """
    in_alpa = candidate.run.schedule in ALPA_SCHEDULES
    if not in_alpa and len(candidate.slicing.stages) not in candidate.costs.possible:
        return None
    timed = simulated(candidate, slicer)
    return timed if (in_alpa and not elsewhere_cut) or fits(timed) else None


def fits(candidate: Candidate) -> bool:
    """Returns whether a simulated candidate plan leaves free what its costs' memory margin asks for."""
    table = candidate.table
    needed = needed_bytes(table, candidate.stages, candidate.timeline)
    return all(n <= table.usable_bytes[on.submesh] for n, on in zip(needed, candidate.slicing.stages, strict=True))


def simulated(candidate: Candidate, slicer: Slicer | None = None) -> Candidate:
    """Returns a candidate with its simulated step, and with its layers cut into the schedule's chunks. A slicer that
    remembers its answers remembers the step.
    """
    if candidate.run.form.chunks > 1 and not candidate.chunks:
        chunks = chunks_of(candidate.table, candidate.slicing.stages, candidate.run)
        candidate = dataclasses.replace(candidate, chunks=chunks)
    times, cluster, run = candidate.times, candidate.cluster, candidate.run
    kept = slicer.kept if isinstance(slicer, Dynamic) and cluster.cores is None else None
    step_s = (
        step_of(times, cluster, run) if kept is None else kept.step_s(lambda: step_of(times, cluster, run), times, run)
    )
    return dataclasses.replace(candidate, simulated_s=step_s)
