"""The task of planning again from what was kept beside a plan: priced on a cluster that may have changed."""

from __future__ import annotations

import dataclasses
import os
from typing import final

from alpa_dejavu.calibration import Calibration, Prices, prices
from alpa_dejavu.costs.communication import CommunicationModel
from alpa_dejavu.costs.latency import LatencyModel
from alpa_dejavu.costs.memory_margin import MemoryMargin
from alpa_dejavu.planning import given_stages, meant_stages
from alpa_dejavu.planning._searched import Searched
from alpa_dejavu.planning._shapes import Shape, micro_batch_counts
from alpa_dejavu.planning.kept import Kept
from alpa_dejavu.planning.model_source import GivenModel
from alpa_dejavu.planning.task import PlanningTask, SpaceRules, StageSpace
from alpa_dejavu.problem import Cluster, Plan, SearchSpace
from alpa_dejavu.slicing import Slicer, slicer

__all__ = ["KeptSpace", "kept_prices", "kept_task"]

_COMMUNICATION = {"AlphaBeta": "alpha-beta", "Free": "free", "Links": "links"}


def kept_prices(
    plan: Plan,
    kept: Kept,
    cluster: Cluster | None = None,
    latency: str | LatencyModel = "auto",
    communication: str | CommunicationModel = "auto",
    calibration: str | os.PathLike[str] | Calibration | None = None,
) -> Prices:
    """What a plan was priced by, on its cluster (None) or on another one.

    Raises:
        ValueError: what is kept is of another plan, or was priced by other models than these; or the plan is on hosts
            that its cluster hasn't, or has options that Alpa hasn't.
    """
    differences = kept.differences(plan)
    if differences:
        raise ValueError(f"what is kept is of another plan: {'; '.join(differences)}; plan once more, and keep that")
    meant_stages(kept.cluster, given_stages(plan))
    if communication == "auto" and calibration is None:
        communication = _COMMUNICATION.get(kept.models[1], communication)
    given = prices(cluster or kept.cluster, calibration, latency, communication)
    models = given.models.names
    if models != kept.models:
        raise ValueError(
            f"the plan was priced by {' and '.join(kept.models)}, not by {' and '.join(models)}; give the calibration "
            "or the models that it was made with"
        )
    # What is kept of a cluster has its calibration in it.
    return given if cluster is not None else dataclasses.replace(given, cluster=kept.cluster)


def kept_task(
    plan: Plan, kept: Kept, given: Prices, slicing: str | Slicer = "dynamic", *, other_counts: bool = False
) -> PlanningTask:
    """The task whose best plan follows another one.

    Args:
        plan: that runs now.
        kept: all that it was made from.
        given: the prices on the cluster as it is.
        slicing: a slicer or its name.
        other_counts: whether the number of micro-batches may change where nobody asked for the plan's; the model is
            then scaled, as nothing is traced.
    """
    count = kept.run.num_micro_batches
    asked = plan.priced_by is not None and plan.priced_by.micro_batches != "auto"
    counts = {count, *micro_batch_counts(kept.batch)} if other_counts and not asked else {count}
    return PlanningTask(
        source=GivenModel(kept.model, kept.batch // count, plan.model),
        prices=given,
        batch=kept.batch,
        layers=(kept.model.num_layers,),
        micro_batches=tuple(sorted(counts)),
        schedule=kept.run.schedule,
        chooser=Searched(begin=Shape(kept.model.num_layers, count)),
        space=KeptSpace(kept),
        slicer=slicer(slicing),
        margin=MemoryMargin(residuals=given.residuals(None), free_share=kept.memory_margin),
        before=plan,
        priced_by=plan.priced_by,
    )


@final
@dataclasses.dataclass(frozen=True, eq=False)
class KeptSpace(StageSpace):
    """The part of a search space of which it was kept how layers are divided.

    Attributes:
        kept: all that a plan was made from.
    """

    kept: Kept

    def space(self, cluster: Cluster, micro_batch: int) -> SearchSpace:
        """The search space on a cluster, for a micro-batch of so many samples."""
        return self._known(cluster, micro_batch)[0]

    def missing(self, cluster: Cluster, micro_batch: int) -> int:
        """The number of logical meshes that planning never looked at, and that are left out."""
        return self._known(cluster, micro_batch)[1]

    def _known(self, cluster: Cluster, micro_batch: int) -> tuple[SearchSpace, int]:
        """The configs whose sharding is kept, and on how many logical meshes it isn't."""
        kept = self.kept
        rules = SpaceRules(kept.submeshes, kept.remat, kept.zero, kept.imbalance)
        space = rules.space(cluster, micro_batch)
        known = space.filtered(kept.knows)
        offered, left = ({c.shape for row in each.configs for c in row if c is not None} for each in (space, known))
        return known, len(offered - left)
