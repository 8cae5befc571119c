"""Contingencies in plan files: stages are written once for all hosts whose loss is met in the same way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from alpa_dejavu.problem import Contingency, Moves, StagePlan

if TYPE_CHECKING:
    from alpa_dejavu.plans.plan_format import ContingenciesData, StageData

Data = dict[str, Any]


def contingencies_data(contingencies: Mapping[str, Contingency], stage_data: Callable[[StagePlan], Data]) -> Data:
    """Returns a plan's contingencies (the fallback plans for the loss of each host) as JSON data of the plan's file.

    Each distinct fallback plan is written once. For each host there is the number of the fallback plan that is run if
    it is lost, with the hosts of its stages, and the layers and bytes that move. `stage_data` makes data of a stage.
    """
    plans: list[Data] = []
    known: dict[tuple[Any, ...], int] = {}
    hosts: dict[str, Data] = {}
    for lost, other in contingencies.items():
        stages = tuple((s.layers, s.submesh, s.logical_mesh, s.remat, s.zero) for s in other.stages)
        key = other.step_s, other.num_micro_batches, stages
        if key not in known:
            known[key] = len(plans)
            figures = {"iteration_time_s": other.step_s, "num_micro_batches": other.num_micro_batches}
            plans.append({**figures, "stages": [stage_data(stage) for stage in other.stages]})
        hosts[lost] = {
            "plan": known[key],
            "hosts": [list(stage.hosts) for stage in other.stages],
            "unused": list(other.unused),
            "moved_layers": list(other.moves.layers),
            "moved_bytes": other.moves.num_bytes,
            "moved_s": other.moves.seconds,
            **({} if not other.moves.checkpoint_bytes else _checkpoint_data(other.moves)),
        }
    return {"plans": plans, "hosts": hosts}


def _checkpoint_data(moves: Moves) -> Data:
    return {"checkpoint_bytes": moves.checkpoint_bytes, "checkpoint_s": moves.checkpoint_s}


def contingencies_of(data: ContingenciesData, stage: Callable[[StageData], StagePlan]) -> dict[str, Contingency]:
    """Returns by lost host the contingencies (fallback plans) that the JSON data of a plan's file describe; `stage`
    makes a stage of its data.
    """
    plans = [
        (tuple(map(stage, plan["stages"])), float(plan["iteration_time_s"]), int(plan["num_micro_batches"]))
        for plan in data["plans"]
    ]
    found = {}
    for lost, own in data["hosts"].items():
        stages, step_s, count = plans[int(own["plan"])]
        there = tuple(dataclasses.replace(s, hosts=tuple(on)) for s, on in zip(stages, own["hosts"], strict=True))
        moved = Moves(
            tuple(map(int, own["moved_layers"])), float(own["moved_bytes"]), float(own["moved_s"]),
            float(own.get("checkpoint_bytes", 0.0)), own.get("checkpoint_s"),
        )  # fmt: skip
        found[lost] = Contingency(there, step_s, count, moved, tuple(own["unused"]))
    return found
