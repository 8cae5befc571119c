"""AMP's plan for a case: its own choice of pipelines and micro-batches, on the hosts that it puts them on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from alpa_dejavu.problem import Cluster, Model, Plan
from alpa_dejavu.strategies import strategy
from hetero._cases import Case
from hetero._layouts import plan_of, stage_of

__all__ = ["amps_plan"]


def amps_plan(case: Case, model: Model, cluster: Cluster, names: Sequence[str]) -> Plan:
    """What AMP chooses, knowing the links and the hosts.

    Args:
        case: whose job it is.
        model: its layers, for a micro-batch of the case.
        cluster: its hosts and links.
        names: of the hosts.
    """
    job = case.job
    samples = job.batch // case.micro_batches
    (pipeline,) = strategy("amp").plan(model, cluster, batch=job.batch, samples=samples).pipelines
    stages = [
        stage_of(
            (stage.first, stage.last),
            [names[host] for host in stage.hosts],
            stage.config.shape,
            stage.config.options if len(stage.hosts) > 1 else {},
        )
        for stage in pipeline.stages
    ]
    return dataclasses.replace(plan_of(case, stages), num_micro_batches=pipeline.num_micro_batches)
