"""Says of a plan which of its cluster's reduction servers pay, and what they save."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from alpa_dejavu._util import units
from alpa_dejavu.costs.communication.reduction_servers import ReductionSplit, group_split
from alpa_dejavu.costs.stage_costs import StageCostModel
from alpa_dejavu.costs.stage_devices import StageDevices
from alpa_dejavu.planning.search._candidate import Candidate
from alpa_dejavu.planning.search._stage_times import stage_times, timeline_of
from alpa_dejavu.problem import MeshConfig, Plan, StageChoice

__all__ = ["with_reduction_servers"]

_NONE = "the plan uses none of the cluster's reduction servers: they speed up no all-reduce of its gradients"


def with_reduction_servers(plan: Plan, found: Candidate) -> Plan:
    """Returns a candidate's finished plan, its seconds corrected or not, with notes on the reduction servers that its
    stages' gradients are split with, as one that Alpa can't run; a plan that does without them stays one that it can.

    Each note says how many servers pay; what they save is what the same stages take without them. A strategy's plan
    that Alpa can't run in any case is returned as it is: its step is the strategy's own.
    """
    costs = found.table.stage_costs
    if not found.cluster.reduction_servers or costs is None or (plan.strategy and not plan.runs_on_alpa):
        return plan
    saved = _saved_s(found, costs)
    if not any(saved):
        return dataclasses.replace(plan, notes=(*plan.notes, _NONE))
    factor = 1.0 if plan.correction is None else plan.correction.factor
    synchronisation_s = found.table.synchronisation_s.copy()
    notes = []
    for n, (stage, less_s) in enumerate(zip(found.stages, saved, strict=True)):
        if less_s > 0:
            here_s = synchronisation_s[stage.entry]
            synchronisation_s[stage.entry] += less_s
            notes.append(_note(n, _split(found, costs, stage), factor * here_s, factor * less_s))
    table = dataclasses.replace(found.table, synchronisation_s=synchronisation_s)
    times = stage_times(table, found.stages, found.space, found.placed, found.run.form)
    without_s = factor * timeline_of(times, found.cluster, found.run).step_s
    whole = (
        f"with reduction servers a step takes {units.seconds(plan.step_s)}, and {units.seconds(without_s)} of the same "
        "stages without them; Alpa has none, so the plan is estimated only"
    )
    return dataclasses.replace(plan, notes=(*plan.notes, *notes, whole), runs_on_alpa=False)


def _saved_s(found: Candidate, costs: StageCostModel) -> list[float]:
    """Returns the seconds a step that reduction servers save each stage."""
    bare = StageCostModel(found.model, dataclasses.replace(found.cluster, reduction_servers=()), costs.models)
    saved = []
    for stage in found.stages:
        devices, config = _mesh(found, stage)
        without, beside = (
            sum(float(seconds[stage.first, stage.last]) for _, seconds in each.combined(devices, config, "step"))
            for each in (bare, costs)
        )
        saved.append(without - beside)
    return saved


def _mesh(found: Candidate, stage: StageChoice) -> tuple[StageDevices, MeshConfig]:
    return found.table.devices[stage.submesh], found.space.config(stage)


def _split(found: Candidate, costs: StageCostModel, stage: StageChoice) -> ReductionSplit:
    """Returns how a stage's gradients are split: in the group of its devices that takes longest."""
    return max(_splits(found, costs, stage), key=lambda split: split.seconds)


def _splits(found: Candidate, costs: StageCostModel, stage: StageChoice) -> Iterator[ReductionSplit]:
    devices, config = _mesh(found, stage)
    for one in costs.division(config).combined("step"):
        for group in costs.places.groups(devices, config, one.axis) if one.kind == "all_reduce" else ():
            split = group_split(group, float(one.num_bytes[stage.first, stage.last]))
            if split is not None:
                yield split


def _note(n: int, split: ReductionSplit, here_s: float, less_s: float) -> str:
    there = len(split.of_servers)
    more = "" if split.paying == there else ", more gain less than 1 %"
    return (
        f"{split.paying} of {there} reduction servers pay for stage {n}{more}: they add up {split.on_servers:.0%} of "
        f"its gradients, which takes {units.seconds(here_s)} instead of {units.seconds(here_s + less_s)}"
    )
