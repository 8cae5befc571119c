"""Time and memory of a plan that somebody else made: the same costs as the planner's, nothing searched."""

from __future__ import annotations

import os
from collections.abc import Sequence

from alpa_dejavu.calibration import Calibration, prices
from alpa_dejavu.costs.communication import CommunicationModel
from alpa_dejavu.costs.latency import LatencyModel
from alpa_dejavu.costs.memory_margin import COUNTED
from alpa_dejavu.costs.runtime import ALPA, RuntimeProfile
from alpa_dejavu.planning.given._annotations import with_confidence, with_unmeasured
from alpa_dejavu.planning.planner import plan
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.planning.search.given_stages import GivenStage, GivenStages
from alpa_dejavu.planning.search.models.model_source import GivenModel
from alpa_dejavu.planning.task import PlanningTask
from alpa_dejavu.problem import Cluster, Model, Run

__all__ = ["estimate"]


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
    stage may exceed the memory.

    Args:
        model: the model's layers, for a micro-batch of the run.
        cluster: the cluster that the plan is for.
        run: the number of micro-batches, and the schedule.
        stages: the stages, in the order of the layers. If all of them name their hosts, they are costed on only those.
        name: the model's name.
        batch: samples of a step.
        latency: a latency model or its name; "auto": as for `plan_model`.
        communication: a communication model or its name; "auto": as for `plan_model`.
        calibration: a file's path, or a `Calibration`; "none": data sheets; None: none.
        runtime: a runtime profile or its name: the training framework that runs the plan.

    Raises:
        ValueError: stages that don't cover the layers one after the other, or name hosts that the cluster hasn't, or
            take more devices of them than they have.
        NoPlanError: the stages' submeshes don't fill the hosts.
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
    return plan(task, annotations=(with_confidence, with_unmeasured))
