"""Makes the task of planning again from what was kept beside a plan, priced on a cluster that may have changed."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import final

from alpa_dejavu.calibration import NONE, Calibration, Prices, prices
from alpa_dejavu.costs.communication import CommunicationModel
from alpa_dejavu.costs.latency import LatencyModel
from alpa_dejavu.costs.memory_margin import MemoryMargin
from alpa_dejavu.planning import estimate, given_stages, meant_stages
from alpa_dejavu.planning.changed.kept import Kept, kept_path, read_kept
from alpa_dejavu.planning.given.plan_estimate import cluster_of_plan
from alpa_dejavu.planning.search._searched import Searched
from alpa_dejavu.planning.search._shapes import Shape, micro_batch_counts
from alpa_dejavu.planning.search.restriction import Restriction, choices_of, restriction, restriction_of
from alpa_dejavu.planning.task import PlanningTask, StageSpace
from alpa_dejavu.plans.plan_changes import priced_text
from alpa_dejavu.problem import Cluster, MeshConfig, Plan, PricedBy, SearchSpace
from alpa_dejavu.slicing import Slicer, slicer

_NAMES = {
    "AnalyticLatency": "analytic", "KernelLatency": "kernels", "AlphaBeta": "alpha-beta", "Free": "free",
    "Links": "links", "Nccl": "nccl",
}  # fmt: skip
"""The names of the models that are kept by the names of their classes, where a name is enough to make one."""


def kept_cluster(plan: Plan, path: str | os.PathLike[str]) -> Cluster | None:
    """Returns the cluster that is kept beside a plan's file, where that doesn't name the machines itself; else None."""
    try:
        cluster_of_plan(plan)
    except ValueError:
        return read_kept(path).cluster if kept_path(path).exists() else None
    return None


def kept_prices(
    plan: Plan,
    kept: Kept,
    cluster: Cluster | None = None,
    latency: str | LatencyModel = "auto",
    communication: str | CommunicationModel = "auto",
    calibration: str | os.PathLike[str] | Calibration | None = None,
) -> Prices:
    """Returns the cluster and the cost models by which a plan was priced, for its own cluster (None) or another one.

    Where neither a calibration nor models are given, the plan's models are taken; on another cluster, unless these were
    data sheets, what `plan_model` takes there. Raises ValueError if the record is of another plan, or the plan was
    priced by other models; or it is on hosts that its cluster hasn't, or has options that Alpa hasn't.
    """
    differences = kept.differences(plan)
    if differences:
        raise ValueError(f"what is kept is of another plan: {'; '.join(differences)}; plan once more, and keep that")
    meant_stages(kept.cluster, given_stages(plan), kept.run.form.chunks)
    named = "" if plan.priced_by is None else plan.priced_by.calibration
    then = _NAMES.get(kept.models[0], "auto")
    left_open = calibration is None and (latency, communication) == ("auto", "auto")
    elsewhere = left_open and cluster is not None and then != "analytic"
    if calibration is None and latency == "auto" and not elsewhere:
        latency = then
    if communication == "auto":
        communication = _communication(kept, calibration)
    priced = prices(cluster or kept.cluster, calibration, latency, communication, _priced_by(plan).runtime)
    models = priced.models.names
    if models != kept.models and not elsewhere:
        remedy = f"give its calibration, {named}" if named else "give those models"
        raise ValueError(
            f"the plan was priced by {' and '.join(kept.models)}, not by {' and '.join(models)}; {remedy}, or "
            "plan once more"
        )
    # What is kept of a cluster has its calibration in it.
    return priced if cluster is not None else dataclasses.replace(priced, cluster=kept.cluster)


def repriced(plan: Plan, kept: Kept, calibration: str | os.PathLike[str] | Calibration) -> tuple[Plan, Kept]:
    """Returns a plan and its record with costs by another calibration, which its notes name; the stages stay the same.

    Both are returned as they are if the calibration is the plan's own. Raises ValueError if it is of other devices.
    """
    priced = prices(kept.cluster, calibration, "auto", _communication(kept, calibration), _priced_by(plan).runtime)
    models, then, now = priced.models, plan.priced_by, priced.named(plan.priced_by)
    if kept.models == models.names and then in (None, now) and priced.cluster == kept.cluster:
        return plan, kept
    estimated = estimate(
        kept.model, priced.cluster, kept.run, given_stages(plan), name=plan.model, batch=kept.batch,
        latency=models.latency, communication=models.communication, runtime=models.runtime,
    ).plan  # fmt: skip
    notes = [f"the plan was priced by {priced_text(then)}; here it is priced by {priced_text(now)}"]
    if plan.correction is not None:
        notes.append("its correction by past runs is left out, as those were of the other prices")
    if then is not None and then.calibration not in ("", now.calibration):
        notes.append(f"what {now.calibration} doesn't say of devices and links is as {then.calibration} has it")
    estimated = dataclasses.replace(estimated, layer_option=plan.layer_option, priced_by=now, notes=tuple(notes))
    return estimated, dataclasses.replace(kept, cluster=priced.cluster, models=models.names)


def _priced_by(plan: Plan) -> PricedBy:
    return plan.priced_by or PricedBy()


def _communication(kept: Kept, calibration: str | os.PathLike[str] | Calibration | None) -> str:
    """Returns the name of the communication model that priced the plan, where the name is enough to make it."""
    name = _NAMES.get(kept.models[1], "auto")
    return name if calibration is None or name == "links" or (calibration == NONE and name == "free") else "auto"


def kept_task(
    plan: Plan, kept: Kept, prices: Prices, slicing: str | Slicer = "dynamic", *, other_counts: bool = False
) -> PlanningTask:
    """Returns the task whose best plan is to follow one that runs, from what was kept of that, by the prices of now.

    With `other_counts` the number of micro-batches may change, unless the user had asked for it; the model is then
    scaled.
    """
    count, limits = kept.run.num_micro_batches, restriction(_priced_by(plan).runs_on, kept.batch, plan.model)
    limits = limits or restriction_of(kept.model, kept.batch)
    if limits is not None and kept.run.schedule in limits.limits.schedules_alone:
        limits = dataclasses.replace(limits, alone=True)
    asked = _priced_by(plan).micro_batches != "auto"
    counts = {count, *micro_batch_counts(kept.batch, prices.cluster)} if other_counts and not asked else {count}
    return PlanningTask(
        source=kept.source(plan.model),
        prices=prices,
        batch=kept.batch,
        layers=(kept.model.num_layers,),
        micro_batches=tuple(sorted(counts)),
        schedule=kept.run.schedule,
        chooser=Searched(begin=None if other_counts else Shape(kept.model.num_layers, count)),
        space=KeptSpace(kept, limits),
        slicer=slicer(slicing),
        margin=MemoryMargin(residuals=prices.residuals(None), free_share=kept.memory_margin),
        before=plan,
        priced_by=plan.priced_by,
    )


def with_free_divisions(kept: Kept) -> Kept:
    """Returns a record in which the degrees of parallelism that were asked for may be chosen."""
    return dataclasses.replace(kept, rules=dataclasses.replace(kept.rules, divisions=choices_of(kept.model)))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class KeptSpace(StageSpace):
    """A rule that lets stages have configs on whose meshes a record knows the layers' sharding, as a framework can."""

    kept: Kept
    restriction: Restriction | None = None

    def space(self, cluster: Cluster, micro_batch: int) -> SearchSpace:
        """Returns the submeshes and configs for micro-batches of so many samples, if their sharding is known."""
        return self._offered(cluster, micro_batch).filtered(self._known_for(micro_batch))

    def missing(self, cluster: Cluster, micro_batch: int) -> int:
        """Returns how many logical meshes a search leaves out because it isn't known how layers are sharded on them."""
        offered = self._offered(cluster, micro_batch)
        every, left = (
            {config.shape for row in space.configs for config in row if config is not None}
            for space in (offered, offered.filtered(self._known_for(micro_batch)))
        )
        return len(every - left)

    def _known_for(self, micro_batch: int) -> Callable[[MeshConfig], bool]:
        return functools.partial(self.kept.knows, micro_batch=micro_batch)

    def _offered(self, cluster: Cluster, micro_batch: int) -> SearchSpace:
        """Returns the space of all configs, whether or not it is known how layers are sharded on their meshes."""
        return dataclasses.replace(self.kept.rules, restriction=self.restriction).space(cluster, micro_batch)
