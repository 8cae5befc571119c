"""Checks whether a plan that is given fits the train step and the cluster that Alpa has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from alpa_dejavu.alpa._places import cluster_differences, running_differences
from alpa_dejavu.exports.alpa_code import remat_layers
from alpa_dejavu.problem import Plan
from alpa_dejavu.problem.run import ALPA_SCHEDULES

_REMAT = ("checkpoint", "remat", "remat2")


def checked(plan: str | os.PathLike[str] | Plan, arguments: Mapping[str, Any], cluster: object = None) -> Plan:
    """Returns a plan as it is, after checking that it fits the step and the cluster that Alpa constructs stages for.

    The arguments are those of Alpa's `cluster_layers_and_slice_mesh`. If `cluster` is no `Cluster` with the names of
    Alpa's hosts, Ray's names are taken. Raises ValueError with every difference.
    """
    assert isinstance(plan, Plan), "the option reads plan files when it is made"
    mesh = arguments["virtual_mesh"]
    differences = [*_of_step(plan, arguments), *cluster_differences(plan, mesh, cluster)]
    differences = differences or [*running_differences(plan, mesh, cluster)]
    if differences:
        name = f"the plan for {plan.model or 'a model'} on {plan.cluster} doesn't fit"
        raise ValueError(f"{name}: {'; '.join(differences)}; plan again for this step and cluster, or change them")
    return plan


def _of_step(plan: Plan, arguments: Mapping[str, Any]) -> Iterator[str]:
    if plan.schedule not in ALPA_SCHEDULES:
        yield f"its schedule is {plan.schedule!r}, but Alpa has only {', '.join(ALPA_SCHEDULES)}"
    elif not plan.runs_on_alpa:
        cannot = f"can't run what {plan.strategy} does" if plan.strategy else "has no reduction servers"
        cannot = "has no offload" if plan.offloads else cannot
        cannot = "has no streams beside computing" if plan.streams else cannot
        if not all(stage.plain for stage in plan.stages):
            cannot = "has no context, expert or hybrid sharded parallelism, and no selective remat"
        yield f"it is estimated only, since Alpa's runtime {cannot}"
    schedule, counted = arguments["pipeline_schedule"], arguments["layers"]
    num_layers = len(counted) if schedule == "inference" else len(counted) // 2
    if plan.num_layers != num_layers:
        yield f"it has {plan.num_layers} layers, but the step is cut into {num_layers}"
    if plan.schedule in ALPA_SCHEDULES and plan.schedule != schedule:
        yield f"its pipeline_schedule is {plan.schedule!r}, but here it is {schedule!r}"
    if plan.num_micro_batches != arguments["num_micro_batches"]:
        yield f"it has {plan.num_micro_batches} micro-batches, but here are {arguments['num_micro_batches']}"
    micro_batch = arguments["batch_size"]
    if (
        plan.batch is not None
        and micro_batch is not None
        and plan.batch != micro_batch * arguments["num_micro_batches"]
    ):
        yield f"it is for batches of {plan.batch}, but here they are of {micro_batch * arguments['num_micro_batches']}"
    if plan.num_layers == num_layers and schedule != "inference":
        backward = counted[::-1][:num_layers]
        for n, (stage, layers) in enumerate(zip(plan.stages, plan.layer_ids, strict=True)):
            if stage.remat == "layer" and not any(_has_remat(backward[layer]) for layer in layers):
                yield (
                    f"stage {n} has remat, but layers {layers[0]}..{layers[-1]} of the step haven't: give "
                    f"layer_option=DejavuLayerOption(remat_layers={remat_layers(plan)}, ...)"
                )


def _has_remat(layer: Any) -> bool:
    return any(equation.primitive.name in _REMAT for equation in layer.closed_jaxpr().jaxpr.eqns)
