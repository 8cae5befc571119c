"""Time and memory of a plan that somebody else made: the same costs, nothing searched."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import final

from alpa_dejavu._finished import finished_plan
from alpa_dejavu._kinds import kinds_of
from alpa_dejavu.communication import CommunicationModel
from alpa_dejavu.cost_models import CostModels
from alpa_dejavu.cost_table import cost_table
from alpa_dejavu.latency import LatencyModel
from alpa_dejavu.planned import Planned
from alpa_dejavu.problem import (
    Cluster,
    MeshConfig,
    Model,
    Plan,
    Run,
    SearchSpace,
    Slicing,
    StageChoice,
    StagePlan,
    Submesh,
)
from alpa_dejavu.search import Candidate, simulated

__all__ = ["GivenStage", "choices_of", "config_of_stage", "estimate", "given_stages", "named_hosts"]


@final
@dataclasses.dataclass(frozen=True)
class GivenStage:
    """Layers first..last (inclusive) on a submesh with a config; on these hosts, by their names, where it is known."""

    first: int
    last: int
    submesh: Submesh
    config: MeshConfig
    hosts: tuple[str, ...] | None = None


def given_stages(plan: Plan) -> list[GivenStage]:
    """The stages of a plan, to be estimated afresh."""
    return [GivenStage(*stage.layers, stage.submesh, config_of_stage(stage), stage.hosts) for stage in plan.stages]


def config_of_stage(stage: StagePlan) -> MeshConfig:
    """Its logical mesh, with what it was told to do there."""
    across, along = (*stage.logical_mesh, 1)[:2]
    return MeshConfig((across, along), across, along, dict(stage.options), remat=stage.remat, zero=stage.zero)


def choices_of(planned: Planned) -> tuple[StageChoice, ...]:
    """What the stages of an estimate are in its cost table."""
    space, names = planned.space, [host.name for host in planned.cluster.hosts]
    found = []
    for stage in planned.plan.stages:
        place = stage.submesh, () if space.hosts is None else tuple(map(names.index, stage.hosts))
        submesh = list(zip(space.submeshes, space.hosts or [()] * len(space.submeshes), strict=True)).index(place)
        found.append(StageChoice(*stage.layers, submesh, space.configs[submesh].index(config_of_stage(stage))))
    return tuple(found)


def estimate(
    model: Model,
    cluster: Cluster,
    run: Run,
    stages: Sequence[GivenStage],
    *,
    name: str = "",
    batch: int | None = None,
    latency: str | LatencyModel = "analytic",
    communication: str | CommunicationModel = "alpha-beta",
) -> Planned:
    """What a plan takes, as if the planner had made it; a stage that is out of memory is reckoned all the same.

    Args:
        model: the layers, of a micro-batch of the run.
        cluster: that the plan is for.
        run: its micro-batches and schedule.
        stages: in the order of the layers. Where all of them name hosts that there are, they are priced on those.
        name: of the model.
        batch: samples of a step.
        latency: a latency model or its name.
        communication: a communication model or its name.

    Raises:
        ValueError: stages that don't cover the layers one after the other, or name hosts that there aren't, or more
            devices of them than they have.
        NoPlanError: the stages' submeshes don't fill the hosts.
    """
    started = time.perf_counter()
    covered = [layer for stage in stages for layer in range(stage.first, stage.last + 1)]
    if covered != list(range(model.num_layers)):
        ranges = [(stage.first, stage.last) for stage in stages]
        raise ValueError(f"the stages have layers {ranges}, but must cover 0..{model.num_layers - 1} in order")
    hosts = named_hosts(stages, cluster)
    named = None if hosts is None or max(kinds_of(cluster)) == 0 else hosts
    places = [(stage.submesh, on) for stage, on in zip(stages, named or [()] * len(stages), strict=True)]
    sites = list(dict.fromkeys(places))
    rows = [_unique([stage.config for stage, place in zip(stages, places, strict=True) if place == s]) for s in sites]
    width = max(map(len, rows))
    space = SearchSpace(
        tuple(submesh for submesh, _ in sites),
        tuple((*row, *[None] * (width - len(row))) for row in rows),
        hosts=None if named is None else tuple(on for _, on in sites),
    )
    table = cost_table(model, cluster, space, run, CostModels.named(latency, communication))
    choices = tuple(
        StageChoice(stage.first, stage.last, n, rows[n].index(stage.config))
        for stage, place in zip(stages, places, strict=True)
        for n in [sites.index(place)]
    )
    seconds = time.perf_counter() - started
    found = Candidate(model, table, space, run, Slicing(choices, 0.0, 0.0, 0, 0.0), hosts=hosts)
    candidate = simulated(found, cluster)
    assert candidate.timeline is not None, "it was simulated just now"
    plan = finished_plan(
        choices, table, cluster, space, run, step_s=candidate.step_s, lower_bound_s=0.0,
        planning_s={"cost table": seconds}, model=name, batch=batch, hosts=hosts,
    )  # fmt: skip
    return Planned(plan, model, cluster, space, run, table, candidate.timeline)


def named_hosts(stages: Sequence[GivenStage], cluster: Cluster) -> tuple[tuple[int, ...], ...] | None:
    """For each stage its hosts' indices in the cluster; None where a stage doesn't name its own.

    Alike hosts go by any names: None, too, where the cluster hasn't all of them.

    Raises:
        ValueError: a host that the cluster hasn't, as many as the submesh hasn't, or more devices than it has.
    """
    numbers = {host.name: n for n, host in enumerate(cluster.hosts)}
    known = all(name in numbers for stage in stages for name in stage.hosts or ())
    if any(stage.hosts is None for stage in stages) or not (known or any(kinds_of(cluster))):
        return None
    free = [host.num_devices for host in cluster.hosts]
    found = []
    for n, stage in enumerate(stages):
        names = stage.hosts or ()
        unknown = [name for name in names if name not in numbers]
        if unknown:
            raise ValueError(f"stage {n} is on the hosts {unknown}, but {cluster.name} has {list(numbers)}")
        if len(set(names)) != stage.submesh.num_hosts or len(names) != stage.submesh.num_hosts:
            raise ValueError(f"stage {n} names the hosts {list(names)}, but its submesh has {stage.submesh.num_hosts}")
        for name in names:
            free[numbers[name]] -= stage.submesh.devices_per_host
            if free[numbers[name]] < 0:
                raise ValueError(f"stage {n} and those before it take more devices of {name} than it has")
        found.append(tuple(numbers[name] for name in names))
    return tuple(found)


def _unique(configs: Sequence[MeshConfig]) -> list[MeshConfig]:
    """Each once: options are a mapping, so configs have no hash that tells all of them apart."""
    found: list[MeshConfig] = []
    for config in configs:
        if config not in found:
            found.append(config)
    return found
