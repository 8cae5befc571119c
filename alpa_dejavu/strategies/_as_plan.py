"""A strategy's pipelines as a plan like any other: written, shown, costed and run as those of this package's search."""

from __future__ import annotations

import dataclasses
from collections import Counter

from alpa_dejavu.communication import CommunicationModel
from alpa_dejavu.estimate import GivenStage, estimate
from alpa_dejavu.latency import LatencyModel
from alpa_dejavu.memory_margin import UNMEASURED, MemoryMargin, counted_bytes
from alpa_dejavu.micro_batch import with_micro_batch
from alpa_dejavu.planned import Planned
from alpa_dejavu.problem import Cluster, Model, NoPlanError, Plan, Run, Submesh
from alpa_dejavu.strategies._base import StrategyPlan
from alpa_dejavu.strategies._stages import Pipeline, PlacedStage, config_of

__all__ = ["as_planned"]

_GIB = 2.0**30


def as_planned(
    made: StrategyPlan,
    model: Model,
    cluster: Cluster,
    *,
    samples: int = 1,
    name: str = "",
    latency: str | LatencyModel = "analytic",
    communication: str | CommunicationModel = "alpha-beta",
    margin: MemoryMargin = UNMEASURED,
) -> Planned:
    """The plan, its stages costed as `alpa_dejavu.estimate` costs any.

    What can be run takes what a simulation of those stages says. What is estimated only takes what the strategy's own
    price says (`StrategyPlan.step_s`); its stages and timeline are those of the same division with synchronous steps.

    Args:
        made: by the strategy.
        model: the layers that the strategy was given, for a micro-batch of `samples` samples.
        cluster: that it is for.
        samples: of the micro-batch that the model is of.
        name: of the model.
        latency: a latency model or its name.
        communication: a communication model or its name.
        margin: of memory.

    Raises:
        ValueError: its pipelines aren't alike, or a stage is on devices that make no mesh; says which.
        NoPlanError: a stage hasn't the memory.
    """
    pipeline = _whole_pipeline(made)
    stages = [_given(made.strategy, n, stage, cluster) for n, stage in enumerate(pipeline.stages)]
    model, run = with_micro_batch(model, pipeline.micro_batch / samples), Run(pipeline.num_micro_batches)
    found = estimate(
        model, cluster, run, stages, name=name, batch=made.batch, latency=latency, communication=communication
    )
    both = zip(found.plan.stages, stages, strict=True)
    placed = tuple(dataclasses.replace(stage, hosts=on.hosts or stage.hosts) for stage, on in both)
    plan = dataclasses.replace(
        found.plan,
        stages=placed,
        step_s=found.plan.step_s if made.runs_on_alpa else made.step_s,
        notes=(_said(made), *made.notes),
        strategy=made.strategy,
        runs_on_alpa=made.runs_on_alpa,
    )
    _check_memory(plan, margin, cluster)
    return dataclasses.replace(found, plan=plan)


def _whole_pipeline(made: StrategyPlan) -> Pipeline:
    """The one pipeline, or virtual workers that are cut alike as one whose stages are data-parallel.

    Raises:
        ValueError: they aren't cut alike.
    """
    first, workers = made.pipelines[0], len(made.pipelines)
    if workers == 1:
        return first
    cuts = {(one.micro_batch, *((stage.first, stage.last) for stage in one.stages)) for one in made.pipelines}
    if len(cuts) > 1:
        raise ValueError(
            f"{made.strategy}: its {workers} virtual workers are cut in unlike ways, so they are no plan of stages; "
            "take an allocation whose virtual workers are alike ('ed'), or look at `Strategy.plan(...).pipelines`"
        )
    stages = []
    for alike in zip(*(one.stages for one in made.pipelines), strict=True):
        hosts = tuple(sorted(host for stage in alike for host in stage.hosts))
        stages.append(PlacedStage(alike[0].first, alike[0].last, hosts, config_of(workers, 1)))
    return Pipeline(tuple(stages), workers * first.micro_batch, first.num_micro_batches)


def _given(strategy: str, n: int, stage: PlacedStage, cluster: Cluster) -> GivenStage:
    taken = Counter(cluster.hosts[host].name for host in stage.hosts)
    if not stage.is_submesh:
        raise ValueError(
            f"{strategy}: its stage {n} is on {dict(taken)} devices, but Alpa's meshes have equally many of each of "
            "their hosts; plan for other hosts or another batch, or choose another strategy"
        )
    submesh = Submesh(len(taken), len(stage.hosts) // len(taken))
    return GivenStage(stage.first, stage.last, submesh, stage.config, tuple(taken))


def _said(made: StrategyPlan) -> str:
    own = "" if made.own_s is None else f", and reckons with {made.own_s:.4g} s a step itself"
    return f"chosen by {made.strategy}, which compared {made.tried} plans{own}"


def _check_memory(plan: Plan, margin: MemoryMargin, cluster: Cluster) -> None:
    for n, stage in enumerate(plan.stages):
        hosts = [host for host in cluster.hosts if host.name in stage.hosts]
        if not margin.fits(counted_bytes(stage), hosts):
            need, there = stage.memory_bytes / _GIB, min(map(margin.usable_bytes, hosts)) / _GIB
            raise NoPlanError(
                f"{plan.strategy} has no plan that fits: in the best it knows, stage {n} needs {need:.3g} GiB of each "
                f"device, of which {there:.3g} GiB may be used; give more hosts, another batch or another strategy"
            )
