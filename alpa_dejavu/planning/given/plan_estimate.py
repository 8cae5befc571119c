"""Estimates what a given plan takes by the costs that planning goes by; its model is traced afresh."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, final

from alpa_dejavu.calibration import NONE, Calibration, models_of, prices
from alpa_dejavu.clusters.changed_cluster import slowed
from alpa_dejavu.clusters.host_classes import hosts_by_names, summary_of
from alpa_dejavu.costs.communication import CommunicationModel
from alpa_dejavu.costs.latency import LatencyModel
from alpa_dejavu.costs.memory_margin import COUNTED
from alpa_dejavu.costs.overlap import Overlap
from alpa_dejavu.costs.runtime import ALPA, RuntimeProfile, runtime_profile
from alpa_dejavu.layers import trusted_model
from alpa_dejavu.planning.given._annotations import with_confidence
from alpa_dejavu.planning.planner import plan
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.planning.search.given_stages import PRICED_OPTIONS, GivenStage, GivenStages, given_stages
from alpa_dejavu.planning.search.models.model_source import GivenModel, ModelSource
from alpa_dejavu.planning.search.models.named_model import attention_on, model_source
from alpa_dejavu.planning.task import Clock, PlanningTask
from alpa_dejavu.problem import Cluster, Model, Plan, PricedBy, Run


def estimate(
    model: Model,
    cluster: Cluster,
    run: Run,
    stages: Sequence[GivenStage],
    *,
    name: str = "",
    batch: int | None = None,
    latency: str | LatencyModel = "auto",
    communication: str | CommunicationModel = "auto",
    calibration: str | os.PathLike[str] | Calibration | None = None,
    runtime: str | RuntimeProfile = ALPA,
) -> PlanningResult:
    """Returns the plan that given stages make, costed as if the planner had made it, with the interval of its step; a
    stage may exceed the memory. If all stages name their hosts, they are costed on only those.

    Models and calibration are as for `plan_model`; the model's layers are those of a micro-batch of the run. Raises
    ValueError for stages that don't cover the layers, or are on hosts or more devices than there are; NoPlanError if
    their submeshes don't fill the hosts.
    """
    priced = prices(cluster, calibration, latency, communication, runtime)
    task = PlanningTask(
        source=GivenModel(model, 1 if batch is None else batch // run.num_micro_batches, name),
        prices=priced,
        batch=batch,
        layers=(model.num_layers,),
        micro_batches=(run.num_micro_batches,),
        schedule=run.schedule,
        chooser=GivenStages(tuple(stages)),
        margin=COUNTED,
        priced_by=priced.named(),
    )
    return plan(task, annotations=(with_confidence,))


@final
class PlanEstimator:
    """An estimator of the time and memory of given plans, for one model on one cluster; it traces the model once for
    each size of a micro-batch.

    Args:
        plan: one of the plans that are going to be estimated.
        model: the name of a model, a function that returns its train step, or its layers' source; None: the plan's, a
            known name.
        cluster: a cluster, the name of a machine type or the path of its file, of which as many hosts are taken as the
            plan is for; None: the plan's cluster.
        latency, communication: models or their names; "auto": the plan's, if its name is enough to make it, and neither
            another cluster nor a calibration is given; else as for `plan_model`.
        calibration, cache: as for `plan_model`.
        runtime, attention: as for `plan_model`; None: the plan's.
        overlap: what devices do at the same time, by its name or as an `Overlap`; None: as the runtime's name says.
        trust_model: whether the plan's model may be a "module:function", which is then imported and called.

    Attributes:
        prices: the cluster with the latency and communication models that plans are estimated by.
        cluster: that cluster.

    Raises:
        ValueError: the plan doesn't name its model, cluster or batch and none is given, or doesn't fit them; its model
            is a function that isn't trusted; or the calibration is broken, or of other devices.
    """

    def __init__(
        self,
        plan: Plan,
        model: str | Callable[..., Any] | ModelSource | None = None,
        cluster: str | Cluster | None = None,
        latency: str | LatencyModel = "auto",
        communication: str | CommunicationModel = "auto",
        calibration: str | os.PathLike[str] | Calibration | None = None,
        cache: str | os.PathLike[str] | Literal[False] | None = None,
        *,
        runtime: str | RuntimeProfile | None = None,
        overlap: str | Overlap | None = None,
        attention: str | None = None,
        trust_model: bool = False,
    ) -> None:
        if plan.batch is None:
            raise ValueError("the plan doesn't know its batch, so it can't be costed; set `batch` in its file")
        chosen = model if isinstance(model, ModelSource) else trusted_model(plan, model, trust_model)
        on = cluster if isinstance(cluster, Cluster) else cluster_of_plan(plan, cluster)
        by = plan.priced_by or PricedBy()
        own = cluster is None or (isinstance(cluster, Cluster) and plan.hardware == summary_of(cluster))
        if own and calibration is None and (latency, communication) == ("auto", "auto"):
            latency, communication = models_of(plan.priced_by)
        if communication == "auto" and by.communication in (
            ("links", "free") if calibration in (None, NONE) else ("links",)
        ):
            communication = by.communication
        profile = runtime_profile(by.runtime if runtime is None else runtime, overlap)
        self.prices = prices(on, calibration, latency, communication, profile)
        self.cluster = self.prices.cluster
        self._clock = Clock()
        self._attention = by.attention if attention is None else attention
        self._source = model_source(
            chosen, plan.batch, (plan.num_micro_batches,), cache, self._clock.lap, profile.name,
            attention_on(self.cluster, profile.name, self._attention), by.sequence_parallel,
        )  # fmt: skip

    def estimate(self, plan: Plan) -> PlanningResult:
        """Returns a plan's predicted time, memory and timeline for this model and cluster, whether or not it fits.

        One with none of the cluster's host names is put on its hosts in order, if all are alike. Raises ValueError if
        the plan has no batch, or is of other layers, hosts or devices than the model and cluster have.
        """
        if plan.batch is None or plan.batch % plan.num_micro_batches:
            raise ValueError(
                f"the plan's batch is {plan.batch}, which {plan.num_micro_batches} micro-batches don't divide; give a "
                "batch and a number of micro-batches that fit"
            )
        model, models = self._source.exact(plan.num_layers, plan.batch // plan.num_micro_batches), self.prices.models
        if model.num_layers != plan.num_layers:
            raise ValueError(
                f"the plan has {plan.num_layers} layers, but the model can be cut into {model.num_layers} only"
            )
        result = estimate(
            model, self.cluster, Run(plan.num_micro_batches, plan.schedule), given_stages(plan),
            name=self._source.name, batch=plan.batch, latency=models.latency, communication=models.communication,
            runtime=models.runtime,
        )  # fmt: skip
        self._source.keep()
        estimated = dataclasses.replace(
            result.plan,
            layer_option=plan.layer_option,
            priced_by=dataclasses.replace(self.prices.named(plan.priced_by), attention=self._attention),
            notes=(*self._otherwise(plan), *result.plan.notes),
        ).after(self._clock.seconds)
        return dataclasses.replace(result, plan=estimated)

    def _otherwise(self, plan: Plan) -> Iterator[str]:
        """Yields sentences that say how this estimate differs from the plan's pricing, or what isn't known of that."""
        own = summary_of(self.cluster)
        if plan.hardware is None:
            yield (
                "the plan file is of an old version, which names only the hosts of its stages; this estimate is for "
                f"{own.text}"
            )
        elif plan.hardware.text != own.text:
            yield f"the plan was made for {plan.hardware.text}, this estimate is for {own.text}"
        names, hosts = [*plan.devices_of_hosts], [host.name for host in own.hosts]
        if not set(names) & set(hosts):
            more = ", and so on" if len(names) > 1 else ""
            yield f"the plan's hosts have other names here: {names[0]} is taken to be {hosts[0]}{more}"
        ignored = dict.fromkeys(name for stage in plan.stages for name in stage.options if name not in PRICED_OPTIONS)
        if ignored:
            yield f"this estimate ignores auto-sharding options of the plan: {', '.join(ignored)}"
        if plan.priced_by is None:
            yield "the plan file doesn't name the cost models and the calibration of its prices; here they may differ"
            return
        by = self.prices.named()
        for what in ("latency", "communication", "calibration", "runtime"):
            then, now = getattr(plan.priced_by, what), getattr(by, what)
            if then != now:
                other = f"this estimate's is {now}" if now else f"this estimate has no {what}"
                yield f"the plan's {what} was {then or 'not known'}, {other}"
        then, now = (name or "as the runtime has it" for name in (plan.priced_by.attention, self._attention))
        if then != now:
            yield f"the plan's attention was {then}, this estimate's is {now}"


def cluster_of_plan(plan: Plan, machine: str | None = None) -> Cluster:
    """Returns the cluster that a plan was made for, with exactly its hosts; or as many hosts of another machine type.

    If `machine` is the file of a whole cluster that has the plan's hosts, that cluster is returned as it is. A plan
    without a summary of its cluster is taken to be for only the hosts that its stages name. Raises ValueError if no
    machine type is known or given, or such hosts can't have the plan's devices.
    """
    from alpa_dejavu.clusters import named_cluster
    from alpa_dejavu.clusters.cluster_file import is_cluster_file

    if machine is not None and is_cluster_file(machine):
        listed = named_cluster(machine)
        if len(listed.hosts) > 1 and plan.devices_of_hosts.keys() <= {host.name for host in listed.hosts}:
            return listed
    hardware = plan.hardware or hosts_by_names(plan)
    own = hardware.machine_file or hardware.machine
    if not (machine or own):
        raise ValueError(
            f"the plan is for the cluster {plan.cluster!r}, and doesn't say of which machine its hosts are; give that, "
            "or the cluster's file, with --cluster"
        )
    counts = sorted({host.num_devices for host in hardware.hosts})
    if len(counts) > 1:
        raise ValueError(
            f"the plan is for {hardware.text}, but hosts of a machine type have equally many devices; give the file of "
            "a whole cluster with --cluster"
        )
    try:
        cluster = named_cluster(machine or own, len(hardware.hosts), counts[0])
    except ValueError as error:
        if machine is not None:
            raise
        raise ValueError(f"the plan is for the cluster {plan.cluster!r}: {error}, with --cluster") from None
    if plan.hardware is None and cluster.num_devices != plan.num_devices:
        raise ValueError(
            f"the plan is for {plan.num_devices} devices, but {cluster.name} has {cluster.num_devices}; give another "
            "cluster, or plan for this one"
        )
    if machine not in (None, own):
        return cluster
    named = zip(cluster.hosts, hardware.hosts, strict=True)
    cluster = dataclasses.replace(cluster, hosts=tuple(dataclasses.replace(a, name=b.name) for a, b in named))
    for host in hardware.hosts:
        if host.slowdown != 1:
            cluster = slowed(cluster, host.name, host.slowdown)
    return cluster
