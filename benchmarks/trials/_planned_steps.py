"""Measured steps as pipelines of the planner's: their stages device by device, and the seconds that they take."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu.costs.runtime import RuntimeProfile, runtime_profile
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.planning.strategies import Task
from alpa_dejavu.planning.strategies.stages import Pipeline, PlacedStage, equal_layers
from alpa_dejavu.problem import Cluster, MeshConfig, Run, Submesh

Ends = tuple[float, float, float]
"""Predicted seconds of a step, and the ends of their 90 % interval."""

PROFILED = dataclasses.replace(runtime_profile("deepspeed", "none"), launch_s=0.0, elementwise=1.0)
"""DeepSpeed where layers were profiled as a whole, so that launches and what isn't fused are in their seconds; without
ZeRO it adds gradients up when all micro-batches are through."""


def with_ends(blocks: int, stages: int) -> list[tuple[int, int]]:
    """The layers of each stage, inclusive: equally many blocks, after the embedding and before the head."""
    spans = equal_layers(blocks, stages)
    return [(first + (n > 0), last + 1 + (n == stages - 1)) for n, (first, last) in enumerate(spans)]


def by_rank(cluster: Cluster, spans: Sequence[tuple[int, int]], config: MeshConfig) -> tuple[PlacedStage, ...]:
    """Stages alike on devices in their order: tensor parallelism is innermost, then comes data parallelism."""
    hosts = [n for n, host in enumerate(cluster.hosts) for _ in range(host.num_devices)]
    size = config.data_parallel * config.tensor_parallel
    return tuple(
        PlacedStage(first, last, tuple(hosts[n * size : (n + 1) * size]), config)
        for n, (first, last) in enumerate(spans)
    )


def estimated(task: Task, pipeline: Pipeline) -> Ends:
    """The seconds of a step as anybody's is estimated, by `alpa_dejavu.planning.estimate`; on uneven parts of hosts,
    which make no submesh, as `simulated` has them.
    """
    if not all(stage.is_submesh for stage in pipeline.stages):
        return simulated(task, pipeline)
    stages = []
    for stage in pipeline.stages:
        names = tuple(dict.fromkeys(task.cluster.hosts[host].name for host in stage.hosts))
        submesh = Submesh(len(names), len(stage.hosts) // len(names))
        stages.append(GivenStage(stage.first, stage.last, submesh, stage.config, names))
    models = task.models
    plan = estimate(
        task.of(pipeline.micro_batch), task.cluster, Run(pipeline.num_micro_batches), stages, batch=pipeline.samples,
        latency=models.latency, communication=models.communication, runtime=models.runtime,
    ).plan  # fmt: skip
    assert plan.confidence is not None, "estimates have an interval"
    lower, upper = plan.confidence.interval_s
    return plan.step_s, lower, upper


def simulated(task: Task, pipeline: Pipeline) -> Ends:
    """The seconds of a step of layers that were profiled; they are as far off as the runtime's steps as a whole."""
    step_s, reach = task.step_s(pipeline), _reach(task.models.runtime)
    return step_s, step_s / reach, step_s * reach


def _reach(runtime: RuntimeProfile) -> float:
    return math.exp(REACH_90 * (runtime.spread or 0.0))
