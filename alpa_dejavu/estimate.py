"""What a given plan takes: its time and memory, by the same costs that planning goes by."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any, final

from alpa_dejavu._finished import finished_plan
from alpa_dejavu.communication import CommunicationModel, communication_model
from alpa_dejavu.cost_table import cost_table
from alpa_dejavu.latency import LatencyModel, latency_model
from alpa_dejavu.planned import Planned
from alpa_dejavu.pricing import with_micro_batch
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

__all__ = ["Estimator", "cluster_of_plan", "estimate"]


def estimate(
    plan: Plan,
    model: str | Callable[..., Any] | None = None,
    cluster: str | Cluster | None = None,
    *,
    latency: str | LatencyModel = "analytic",
    communication: str | CommunicationModel = "alpha-beta",
) -> Planned:
    """Traces a plan's model afresh and costs the plan's stages.

    Args:
        plan: what is to be costed; whether it fits into memory is seen in its result.
        model: as `plan_model` takes it; None: the plan's.
        cluster: as `plan_model` takes it, with as many hosts as the plan is for; None: the plan's.
        latency: a latency model or its name.
        communication: a communication model or its name.

    Raises:
        ValueError: the plan doesn't name its model, cluster or batch and none is given, or doesn't fit them.
    """
    return Estimator(plan, model, cluster, latency, communication).estimate(plan)


@final
class Estimator:
    """Costs several plans for one model, which is traced once, on one cluster."""

    def __init__(
        self,
        plan: Plan,
        model: str | Callable[..., Any] | None = None,
        cluster: str | Cluster | None = None,
        latency: str | LatencyModel = "analytic",
        communication: str | CommunicationModel = "alpha-beta",
    ) -> None:
        from alpa_dejavu import layers

        if plan.batch is None:
            raise ValueError("the plan doesn't know its batch, so it can't be costed; set `batch` in its file")
        if not (model or plan.model):
            raise ValueError("the plan doesn't name its model; give --model, a name or 'module:function'")
        self.cluster = cluster if isinstance(cluster, Cluster) else cluster_of_plan(plan, cluster)
        self._latency, self._communication = latency_model(latency), communication_model(communication)
        self._traced_batch = plan.batch // plan.num_micro_batches
        self._layers = layers
        self._traced = layers.trace(model or plan.model, batch=self._traced_batch)
        self._models: dict[int, Model] = {}

    def estimate(self, plan: Plan) -> Planned:
        """Time, memory and timeline of a plan for this model and cluster.

        Raises:
            ValueError: it has no batch, or other layers than the model can be cut into.
        """
        if plan.batch is None or plan.batch % plan.num_micro_batches:
            raise ValueError(
                f"the plan's batch is {plan.batch} in {plan.num_micro_batches} micro-batches; give one that they divide"
            )
        micro_batch = plan.batch // plan.num_micro_batches
        model = self._model(plan.num_layers, micro_batch)
        run = Run(plan.num_micro_batches, plan.schedule)
        space, stages = _space_of(plan, micro_batch)
        table = cost_table(model, self.cluster, space, run, self._latency, self._communication)
        slicing = Slicing(stages, cost_s=plan.step_s, lower_bound_s=0.0, iterations=1, seconds=0.0)
        candidate = simulated(Candidate(model, table, space, run, slicing), self.cluster)
        finished = finished_plan(
            stages,
            table,
            self.cluster,
            space,
            run,
            step_s=candidate.step_s,
            lower_bound_s=plan.lower_bound_s,
            planning_s=plan.planning_s,
            model=plan.model,
            batch=plan.batch,
        )
        kept = [
            dataclasses.replace(new, hosts=old.hosts, options=old.options)
            for new, old in zip(finished.stages, plan.stages, strict=True)
        ]
        known = dataclasses.replace(finished, stages=tuple(kept), layer_option=plan.layer_option)
        assert candidate.timeline is not None, "it was simulated"
        return Planned(known, model, self.cluster, space, run, table, candidate.timeline)

    def _model(self, num_layers: int, micro_batch: int) -> Model:
        if num_layers not in self._models:
            self._models[num_layers] = self._layers.model_of_step(self._traced, num_layers)
        found = self._models[num_layers]
        if found.num_layers != num_layers:
            raise ValueError(f"the plan has {num_layers} layers, but the model can be cut into {found.num_layers} only")
        return with_micro_batch(found, micro_batch / self._traced_batch)


def cluster_of_plan(plan: Plan, machine: str | None = None) -> Cluster:
    """The cluster that a plan names ("8 x p3.16xlarge"), of another machine if one is given.

    Raises:
        ValueError: it names no known machine, or the plan's devices aren't those of whole hosts.
    """
    from alpa_dejavu.clusters import named_cluster

    counted = re.fullmatch(r"(\d+) x (.+)", plan.cluster)
    hosts = int(counted[1]) if counted else len({host for stage in plan.stages for host in stage.hosts})
    name = machine or (counted[2] if counted else plan.cluster)
    per_host = plan.num_devices // hosts if plan.num_devices % hosts == 0 else None
    try:
        cluster = named_cluster(name, hosts, per_host)
    except ValueError as error:
        if machine is not None:
            raise
        raise ValueError(f"the plan is for the cluster {plan.cluster!r}: {error}, with --cluster") from None
    if cluster.num_devices != plan.num_devices:
        raise ValueError(
            f"the plan is for {plan.num_devices} devices, but {cluster.name} has {cluster.num_devices}; give another "
            "cluster, or plan for this one"
        )
    return cluster


def _space_of(plan: Plan, micro_batch: int) -> tuple[SearchSpace, tuple[StageChoice, ...]]:
    """The search space that has just a plan's stages, and the choice of them in it."""
    rows: dict[Submesh, list[MeshConfig]] = {}
    places = []
    for stage in plan.stages:
        row = rows.setdefault(stage.submesh, [])
        row.append(_config(stage, micro_batch))
        places.append((list(rows).index(stage.submesh), len(row) - 1))
    width = max(map(len, rows.values()))
    space = SearchSpace(tuple(rows), tuple((*row, *[None] * (width - len(row))) for row in rows.values()))
    stages = zip(plan.stages, places, strict=True)
    return space, tuple(StageChoice(*stage.layers, submesh, config) for stage, (submesh, config) in stages)


def _config(stage: StagePlan, micro_batch: int) -> MeshConfig:
    """The stage's config: the batch goes along the first axis if it is forced to, else wherever it can be divided."""
    size, shape = math.prod(stage.logical_mesh), stage.logical_mesh
    if len(shape) == 2 and "force_batch_dim_to_mesh_dim" in stage.options:
        ways = shape[0], shape[1]
    else:
        ways = (size, 1) if micro_batch % size == 0 else (1, size)
    return MeshConfig(shape, *ways, options=dict(stage.options), remat=stage.remat, zero=stage.zero)
