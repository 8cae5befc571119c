"""What a given plan takes by the costs that planning goes by, its model being traced afresh."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Callable
from typing import Any, final

from alpa_dejavu.calibration import Calibration, prices
from alpa_dejavu.communication import CommunicationModel
from alpa_dejavu.estimate import estimate, given_stages
from alpa_dejavu.latency import LatencyModel
from alpa_dejavu.micro_batch import with_micro_batch
from alpa_dejavu.planned import Planned
from alpa_dejavu.problem import Cluster, Model, Plan, Run

__all__ = ["PlanEstimator", "cluster_of_plan"]


@final
class PlanEstimator:
    """Costs several plans for one model, which is traced once, on one cluster.

    Args:
        plan: one of those that are going to be costed.
        model: as `plan_model` takes it; None: the plan's.
        cluster: as `plan_model` takes it, with as many hosts as the plan is for; None: the plan's.
        latency: a latency model or its name; "auto": the calibration's, or without one "analytic".
        communication: likewise; "auto": the calibration's, or without one "alpha-beta".
        calibration: as `plan_model` takes it.

    Attributes:
        prices: what plans are costed by.
        cluster: of them.

    Raises:
        ValueError: the plan doesn't name its model, cluster or batch and none is given, or doesn't fit them; or as
            `plan_model` for the calibration.
    """

    def __init__(
        self,
        plan: Plan,
        model: str | Callable[..., Any] | None = None,
        cluster: str | Cluster | None = None,
        latency: str | LatencyModel = "auto",
        communication: str | CommunicationModel = "auto",
        calibration: str | os.PathLike[str] | Calibration | None = None,
    ) -> None:
        if plan.batch is None:
            raise ValueError("the plan doesn't know its batch, so it can't be costed; set `batch` in its file")
        if not (model or plan.model):
            raise ValueError("the plan doesn't name its model; give --model, a name or 'module:function'")
        given = cluster if isinstance(cluster, Cluster) else cluster_of_plan(plan, cluster)
        self.prices = prices(given, calibration, latency, communication)
        self.cluster = self.prices.cluster
        self._traced_batch = plan.batch // plan.num_micro_batches
        from alpa_dejavu import layers

        self._layers = layers
        started = time.perf_counter()
        self._traced = layers.trace(model or plan.model, batch=self._traced_batch)
        self._seconds = {"trace": time.perf_counter() - started, "features": 0.0}
        self._models: dict[int, Model] = {}

    def estimate(self, plan: Plan) -> Planned:
        """Time, memory and timeline of a plan for this model and cluster; whether it fits is seen in the result.

        Raises:
            ValueError: it has no batch, or other layers than the model can be cut into; or it is on hosts that the
                cluster hasn't: on any where hosts are unlike, on some where they are alike. Hosts of which it has none
                are named otherwise.
        """
        if plan.batch is None or plan.batch % plan.num_micro_batches:
            raise ValueError(
                f"the plan's batch is {plan.batch}, which {plan.num_micro_batches} micro-batches don't divide; give a "
                "batch and a number of micro-batches that fit"
            )
        _check_hosts(plan, self.cluster)
        micro_batch = plan.batch // plan.num_micro_batches
        made = estimate(
            self._model(plan.num_layers, micro_batch),
            self.cluster,
            Run(plan.num_micro_batches, plan.schedule),
            given_stages(plan),
            name=self._traced.name,
            batch=plan.batch,
            latency=self.prices.models.latency,
            communication=self.prices.models.communication,
        )
        named = {host.name for host in self.cluster.hosts}
        both = zip(made.plan.stages, plan.stages, strict=True)
        stages = tuple(
            dataclasses.replace(new, hosts=old.hosts) if named >= {*old.hosts} else new for new, old in both
        )
        known = dataclasses.replace(made.plan, stages=stages, layer_option=plan.layer_option).after(self._seconds)
        return dataclasses.replace(made, plan=known)

    def _model(self, num_layers: int, micro_batch: int) -> Model:
        if num_layers not in self._models:
            started = time.perf_counter()
            self._models[num_layers] = self._layers.model_of_step(self._traced, num_layers)
            self._seconds["features"] += time.perf_counter() - started
        found = self._models[num_layers]
        if found.num_layers != num_layers:
            raise ValueError(f"the plan has {num_layers} layers, but the model can be cut into {found.num_layers} only")
        return with_micro_batch(found, micro_batch / self._traced_batch)


def _check_hosts(plan: Plan, cluster: Cluster) -> None:
    there = [host.name for host in cluster.hosts]
    for n, stage in enumerate(plan.stages):
        unknown = [name for name in stage.hosts if name not in there]
        if unknown and any({*there} & {*other.hosts} for other in plan.stages):
            raise ValueError(
                f"stage {n} is on the host {unknown[0]!r}, but {cluster.name} has {', '.join(map(repr, there))}; plan "
                "again for this cluster, or give the plan's own"
            )


def cluster_of_plan(plan: Plan, machine: str | None = None) -> Cluster:
    """The cluster that a plan names ("8 x p3.16xlarge"), of another machine if one is given.

    A plan may leave hosts of it unused. A file of a whole cluster that has the plan's hosts is taken as it is.

    Raises:
        ValueError: it names no known machine, or the plan's devices aren't those of whole hosts.
    """
    from alpa_dejavu.clusters import named_cluster

    counted = re.fullmatch(r"(\d+) x (.+)", plan.cluster)
    taken = plan.devices_of_hosts
    if machine is not None and machine.endswith(".json"):
        listed = named_cluster(machine)
        if len(listed.hosts) > 1 and taken.keys() <= {host.name for host in listed.hosts}:
            return listed
    hosts = int(counted[1]) if counted else len(taken)
    name = machine or (counted[2] if counted else plan.cluster)
    per_host = plan.num_devices // hosts if plan.num_devices % hosts == 0 else None
    unused = len(taken) < hosts
    if unused:
        per_host = max(taken.values())
    try:
        cluster = named_cluster(name, hosts, per_host)
    except ValueError as error:
        if machine is not None:
            raise
        raise ValueError(f"the plan is for the cluster {plan.cluster!r}: {error}, with --cluster") from None
    if cluster.num_devices != plan.num_devices and not (unused and plan.num_devices < cluster.num_devices):
        raise ValueError(
            f"the plan is for {plan.num_devices} devices, but {cluster.name} has {cluster.num_devices}; give another "
            "cluster, or plan for this one"
        )
    return cluster
