"""Time and memory of a plan that somebody else made: the same costs, nothing searched."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import final

from alpa_dejavu._finished import finished_plan
from alpa_dejavu.communication import CommunicationModel, communication_model
from alpa_dejavu.cost_table import cost_table
from alpa_dejavu.latency import LatencyModel, latency_model
from alpa_dejavu.planned import Planned
from alpa_dejavu.problem import Cluster, MeshConfig, Model, Run, SearchSpace, Slicing, StageChoice, Submesh
from alpa_dejavu.search import Candidate, simulated

__all__ = ["GivenStage", "estimate"]


@final
@dataclasses.dataclass(frozen=True)
class GivenStage:
    """Layers first..last (inclusive) on a submesh with a config."""

    first: int
    last: int
    submesh: Submesh
    config: MeshConfig


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
        stages: in the order of the layers.
        name: of the model.
        batch: samples of a step.
        latency: a latency model or its name.
        communication: a communication model or its name.

    Raises:
        ValueError: stages that don't cover the layers one after the other.
        NoPlanError: the stages' submeshes don't fill the hosts.
    """
    started = time.perf_counter()
    covered = [layer for stage in stages for layer in range(stage.first, stage.last + 1)]
    if covered != list(range(model.num_layers)):
        ranges = [(stage.first, stage.last) for stage in stages]
        raise ValueError(f"the stages have layers {ranges}, but must cover 0..{model.num_layers - 1} in order")
    submeshes = tuple(dict.fromkeys(stage.submesh for stage in stages))
    rows = [_unique([stage.config for stage in stages if stage.submesh == submesh]) for submesh in submeshes]
    width = max(map(len, rows))
    space = SearchSpace(submeshes, tuple((*row, *[None] * (width - len(row))) for row in rows))
    table = cost_table(model, cluster, space, run, latency_model(latency), communication_model(communication))
    choices = tuple(
        StageChoice(stage.first, stage.last, n, rows[n].index(stage.config))
        for stage in stages
        for n in [submeshes.index(stage.submesh)]
    )
    seconds = time.perf_counter() - started
    candidate = simulated(Candidate(model, table, space, run, Slicing(choices, 0.0, 0.0, 0, 0.0)), cluster)
    assert candidate.timeline is not None, "it was simulated just now"
    plan = finished_plan(
        choices, table, cluster, space, run, step_s=candidate.step_s, lower_bound_s=0.0,
        planning_s={"cost table": seconds}, model=name, batch=batch,
    )  # fmt: skip
    return Planned(plan, model, cluster, space, run, table, candidate.timeline)


def _unique(configs: Sequence[MeshConfig]) -> list[MeshConfig]:
    """Each once: options are a mapping, so configs have no hash that tells all of them apart."""
    found: list[MeshConfig] = []
    for config in configs:
        if config not in found:
            found.append(config)
    return found
