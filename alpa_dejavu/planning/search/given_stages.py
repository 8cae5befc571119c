"""Plans whose stages somebody gives: costed as any other, nothing searched."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

from alpa_dejavu.clusters.host_classes import kinds_of
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.planning.search._candidate import Candidate, Costs, config_of_stage, simulated
from alpa_dejavu.planning.search._clock import Clock
from alpa_dejavu.planning.search.fits import stage_differences
from alpa_dejavu.planning.task import Chooser, Found, PlanningTask
from alpa_dejavu.problem import (
    Cluster,
    MeshConfig,
    Model,
    Plan,
    Run,
    SearchSpace,
    Slicing,
    StageChoice,
    Submesh,
)

__all__ = [
    "GivenStage",
    "GivenStages",
    "given_candidate",
    "given_stages",
    "meant_stages",
    "on_used_hosts",
    "used_configs",
]


@final
@dataclasses.dataclass(frozen=True)
class GivenStage:
    """A stage as a user gives it: layers first..last (inclusive), submesh, config, and host names or None (any)."""

    first: int
    last: int
    submesh: Submesh
    config: MeshConfig
    hosts: tuple[str, ...] | None = None


def given_stages(plan: Plan) -> list[GivenStage]:
    """Returns the stages of a plan without their costs, so that they can be costed anew."""
    return [GivenStage(*stage.layers, stage.submesh, config_of_stage(stage), stage.hosts) for stage in plan.stages]


@final
@dataclasses.dataclass(frozen=True)
class GivenStages(Chooser):
    """A chooser that takes the stages it was given as the only plan, whether or not they fit into memory.

    Attributes:
        stages: in the order of the layers.

    `choose` raises ValueError for stages that don't cover the layers one after the other, or that name hosts that
    the cluster hasn't or devices that they haven't; NoPlanError for submeshes that don't fit the hosts.
    """

    stages: tuple[GivenStage, ...]

    def choose(self, task: PlanningTask, clock: Clock) -> Found:
        """Returns the given stages as the only candidate plan, costed and simulated."""
        (layers,), (count,) = task.layers, task.micro_batches
        model = task.source.exact(layers, task.micro_batch(count))
        clock.lap("features")
        found = given_candidate(task, model, Run(count, task.schedule), self.stages)
        clock.lap("cost table")
        return Found([found])

    def again(self, task: PlanningTask, found: Sequence[Candidate], clock: Clock) -> None:
        """Returns None: stages that were given for one cluster make no plan on another."""


def given_candidate(task: PlanningTask, model: Model, run: Run, stages: Sequence[GivenStage]) -> Candidate:
    """Returns the candidate plan that given stages make, costed and simulated on only the hosts that they name."""
    covered = [layer for stage in stages for layer in range(stage.first, stage.last + 1)]
    if covered != list(range(model.num_layers)):
        ranges = [(stage.first, stage.last) for stage in stages]
        raise ValueError(f"the stages have layers {ranges}, but must cover 0..{model.num_layers - 1} in order")
    stages = meant_stages(task.cluster, stages, run.form.chunks)
    cluster, hosts = used_part(task.cluster, stages)
    unlike = any(kinds_of(cluster)) and hosts is not None
    places = [(stage.submesh, hosts[n] if unlike and hosts else ()) for n, stage in enumerate(stages)]
    sites = list(dict.fromkeys(places))
    rows = [_unique([stage.config for stage, place in zip(stages, places, strict=True) if place == s]) for s in sites]
    width = max(map(len, rows))
    space = SearchSpace(
        tuple(submesh for submesh, _ in sites),
        tuple((*row, *[None] * (width - len(row))) for row in rows),
        hosts=tuple(on for _, on in sites) if unlike else None,
    )
    table = cost_table(model, cluster, space, run, task.prices.models, task.margin)
    choices = tuple(
        StageChoice(stage.first, stage.last, n, rows[n].index(stage.config))
        for stage, place in zip(stages, places, strict=True)
        for n in [sites.index(place)]
    )
    costs = task.adjusted(Costs(model, cluster, space, run, table, partial=True))
    on_submeshes, chunks = run.on_submeshes(choices), choices if run.form.chunks > 1 else ()
    hosts = hosts and run.on_submeshes(hosts)
    return simulated(Candidate(costs, Slicing(on_submeshes, 0.0, 0.0, 0, 0.0), hosts=hosts, chunks=chunks))


def meant_stages(cluster: Cluster, stages: Sequence[GivenStage], chunks: int = 1) -> list[GivenStage]:
    """Returns given stages with their hosts' names replaced by those of a cluster that has other names for alike hosts.

    That is done where all hosts are alike, and the cluster has none of the named hosts, but as many: which is which
    makes no difference. Other stages are returned as they are. Each submesh has `chunks` of the stages.

    Raises:
        ValueError: a stage names a host that the cluster hasn't, more devices of it than it has, or another number of
            hosts than its submesh has; or it has a logical mesh of another size than the submesh, or options that Alpa
            hasn't.
    """
    devices = {host.name: host.num_devices for host in cluster.hosts}
    named = dict.fromkeys(name for stage in stages for name in stage.hosts or ())
    if len(named) <= len(devices) and not named.keys() & devices.keys() and not any(kinds_of(cluster)):
        meant = dict(zip(named, devices, strict=False))
        stages = [
            dataclasses.replace(stage, hosts=stage.hosts and tuple(meant[name] for name in stage.hosts))
            for stage in stages
        ]
    differences = [*stage_differences(stages, devices, cluster.name, [*devices.values()], chunks)]
    if differences:
        said = "; ".join(differences)
        raise ValueError(f"the plan doesn't fit {cluster.name}: {said}; plan again for this cluster, or give its own")
    return list(stages)


def used_part(cluster: Cluster, stages: Sequence[GivenStage]) -> tuple[Cluster, tuple[tuple[int, ...], ...] | None]:
    """Returns the part of a cluster that given stages are on, and for each stage the indices of its hosts in that part;
    the whole cluster and None where a stage names no hosts.
    """
    if any(stage.hosts is None for stage in stages):
        return cluster, None
    used = {name for stage in stages for name in stage.hosts or ()}
    part = part_of(cluster, [n for n, host in enumerate(cluster.hosts) if host.name in used])
    numbers = part.host_numbers
    return part, tuple(tuple(numbers[name] for name in stage.hosts or ()) for stage in stages)


def part_of(cluster: Cluster, hosts: Sequence[int]) -> Cluster:
    """Returns a cluster of some hosts of another one; the other one itself where its devices share one CPU."""
    return cluster if len(hosts) == len(cluster.hosts) or cluster.shared else cluster.part(hosts)


def on_used_hosts(task: PlanningTask, found: Candidate, names: Sequence[Sequence[str]]) -> Candidate:
    """Returns a candidate plan costed anew on the named hosts of its stages, as if the plan had been given."""
    stages = [
        GivenStage(stage.first, stage.last, found.space.submeshes[stage.submesh], found.space.config(stage), tuple(on))
        for stage, on in zip(found.stages, names, strict=True)
    ]
    again = given_candidate(task, found.model, found.run, stages)
    slicing = dataclasses.replace(found.slicing, stages=again.slicing.stages)
    return dataclasses.replace(again, slicing=slicing, costs=dataclasses.replace(again.costs, exact=found.costs.exact))


def used_configs(found: Candidate) -> SearchSpace:
    """Returns the search space that has only the submeshes and configs of a candidate's stages."""
    space, used = found.space, dict.fromkeys(stage.submesh for stage in found.stages)
    rows = []
    for s in used:
        rows.append(_unique([space.config(stage) for stage in found.stages if stage.submesh == s]))
    width = max(map(len, rows))
    return SearchSpace(
        tuple(space.submeshes[s] for s in used),
        tuple((*row, *[None] * (width - len(row))) for row in rows),
        space.allowed_imbalance,
        space.hosts and tuple(space.hosts[s] for s in used),
    )


def _unique(configs: Sequence[MeshConfig]) -> list[MeshConfig]:
    """Each config once: options are a mapping, so configs have no hash that tells all of them apart."""
    found: list[MeshConfig] = []
    for config in configs:
        if config not in found:
            found.append(config)
    return found
