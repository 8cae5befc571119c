"""Plans as JSON files, version 1; `schemas/plan-1.json` has every key, from the types in `_plan_format.py`.

Keys that a plan can be run and shown without may be left out: they are 0, `auto_sharding` follows the logical mesh, and
nothing is said of `confidence`, `notes`, `contingencies`, `hardware` and `priced_by`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from alpa_dejavu._util.json_file import read_checked, write_whole
from alpa_dejavu.plans._contingency_file import contingencies_data, contingencies_of
from alpa_dejavu.plans._contradictions import contradictions
from alpa_dejavu.problem import (
    ClusterSummary,
    Confidence,
    DrawnSeconds,
    HostSummary,
    Offload,
    Plan,
    PricedBy,
    StageOffload,
    StagePlan,
    StepCorrection,
    Submesh,
)

if TYPE_CHECKING:
    from alpa_dejavu.plans.plan_format import (
        ConfidenceData,
        HardwareData,
        OffloadData,
        PlanData,
        PricedByData,
        StageData,
        StageDrawnData,
    )

__all__ = ["VERSION", "plan_data", "plan_of", "plan_text", "read_plan", "write_plan"]

VERSION = 1
_REMEDY = "`alpa-dejavu plan --json FILE` writes plans in version 1"
_STAGE_FIGURES = (
    "forward_s",
    "backward_s",
    "per_step_s",
    "memory_bytes",
    "memory_limit_bytes",
    "compute_s",
    "collective_s",
    "boundary_s",
    "forward_collective_s",
    "forward_boundary_s",
    "synchronisation_s",
    "activation_bytes",
    "resident_bytes",
    "temporary_bytes",
)


_DEGREES = ("context_parallel", "expert_parallel", "sharded")
"""Those that are left out where a stage has none of them."""
_RARE_FIGURES = ("backward_weight_s", "hidden_s", "hidden_per_step_s")
"""Those that are left out where they are 0."""


def plan_data(plan: Plan) -> dict[str, Any]:
    """Returns a plan as the JSON data of its file: objects, lists, text and numbers."""
    return {
        "version": VERSION,
        "model": plan.model,
        "num_layers": plan.num_layers,
        "layer_option": plan.layer_option,
        "cluster": plan.cluster,
        **({} if plan.hardware is None else {"hardware": _hardware_data(plan.hardware)}),
        **({} if plan.priced_by is None else {"priced_by": _priced_by_data(plan.priced_by)}),
        "num_devices": plan.num_devices,
        "batch": plan.batch,
        "num_micro_batches": plan.num_micro_batches,
        "schedule": plan.schedule,
        "iteration_time_s": plan.step_s,
        "lower_bound_s": plan.lower_bound_s,
        "planning_s": dict(plan.planning_s),
        **_said_data(plan),
        **({} if plan.correction is None else {"correction": dataclasses.asdict(plan.correction)}),
        **({"strategy": plan.strategy} if plan.strategy else {}),
        **({} if plan.runs_on_alpa else {"runs_on_alpa": False}),
        "stages": [_stage_data(stage) for stage in plan.stages],
        **_fallbacks_data(plan),
    }


def plan_text(plan: Plan) -> str:
    """Returns the text of a plan's JSON file.

    Raises:
        ValueError: a figure of the plan isn't finite.
    """
    return json.dumps(plan_data(plan), indent=2, allow_nan=False) + "\n"


def write_plan(plan: Plan, path: str | os.PathLike[str]) -> pathlib.Path:
    """Writes a plan to a JSON file, the whole file or nothing, and returns the file's path.

    Raises:
        ValueError: there is no such folder, or a figure of the plan isn't finite.
    """
    file = pathlib.Path(path)
    write_whole(file, plan_text(plan))
    return file


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Reads a plan from its JSON file and checks it.

    Only the file itself is checked, not whether the plan fits a model and a cluster.

    Raises:
        ValueError: something is wrong with the file; says what, in which line, and what would be right.
    """
    from alpa_dejavu.plans.plan_format import PlanData

    file = read_checked(pathlib.Path(path), PlanData, _REMEDY)
    for where, said in contradictions(file.data):
        raise file.problem(where, said)
    return _plan(file.data)


def plan_of(data: Mapping[str, Any]) -> Plan:
    """Returns the plan that the JSON data of a plan's file describe; nothing is checked but what a `Plan` and its
    stages check of themselves, such as the ZeRO level.
    """
    return _plan(cast("PlanData", data))


def consistent_plan(data: PlanData) -> Plan:
    """Returns the plan that the JSON data of a plan's file describe, after checking that no keys contradict each other.

    Raises:
        ValueError: keys contradict each other, such as a number of layers that isn't that of the stages.
    """
    for _, said in contradictions(data):
        raise ValueError(said)
    return _plan(data)


def _plan(data: PlanData) -> Plan:
    return Plan(
        stages=tuple(map(_stage, data["stages"])),
        step_s=float(data["iteration_time_s"]),
        lower_bound_s=float(data.get("lower_bound_s", 0.0)),
        num_micro_batches=int(data["num_micro_batches"]),
        schedule=data["schedule"],
        cluster=data["cluster"],
        planning_s={step: float(seconds) for step, seconds in data["planning_s"].items()},
        model=data["model"],
        batch=None if data["batch"] is None else int(data["batch"]),
        layer_option=data.get("layer_option", "auto"),
        confidence=_confidence(data["confidence"]) if "confidence" in data else None,
        notes=tuple(data.get("notes", ())),
        correction=StepCorrection(**data["correction"]) if "correction" in data else None,
        contingencies=contingencies_of(data["contingencies"], _stage) if "contingencies" in data else {},
        strategy=data.get("strategy", ""),
        runs_on_alpa=data.get("runs_on_alpa", True),
        hardware=_hardware(data["hardware"]) if "hardware" in data else None,
        priced_by=_priced_by(data["priced_by"]) if "priced_by" in data else None,
    )


def _hardware_data(hardware: ClusterSummary) -> dict[str, Any]:
    """Returns the data of a plan's hardware; of each host they have what isn't the default."""
    hosts = [
        {field.name: getattr(host, field.name) for field in fields if getattr(host, field.name) != field.default}
        for fields in [dataclasses.fields(HostSummary)]
        for host in hardware.hosts
    ]
    return {**dataclasses.asdict(hardware), "hosts": hosts}


def _hardware(data: HardwareData) -> ClusterSummary:
    fields: dict[str, Any] = {**data, "hosts": tuple(HostSummary(**host) for host in data["hosts"])}
    return ClusterSummary(**fields)


def _priced_by_data(by: PricedBy) -> dict[str, Any]:
    """Returns the data of a plan's pricing; what plans seldom have is named only where they have it."""
    unnamed = {name: getattr(PricedBy, name) for name in ("runtime", "offload", "replicas", "runs_on", "attention")}
    return {key: value for key, value in dataclasses.asdict(by).items() if unnamed.get(key) != value}


def _priced_by(data: PricedByData) -> PricedBy:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return PricedBy(**fields)


def _fallbacks_data(plan: Plan) -> dict[str, Any]:
    if not plan.contingencies:
        return {}
    return {"contingencies": contingencies_data(plan.contingencies, _stage_data)}


def _said_data(plan: Plan) -> dict[str, Any]:
    """Returns the data of what is said of the prediction: its confidence and notes, where there are any."""
    said: dict[str, Any] = {}
    if plan.confidence is not None:
        known = dataclasses.asdict(plan.confidence) | {"interval_s": list(plan.confidence.interval_s)}
        said["confidence"] = {key: value for key, value in known.items() if key != "deviation_s" or value}
    if plan.notes:
        said["notes"] = list(plan.notes)
    return said


def _confidence(data: ConfidenceData) -> Confidence:
    low, high = map(float, data["interval_s"])
    return Confidence(
        probability=float(data["probability"]),
        expected_step_s=float(data["expected_step_s"]),
        interval_s=(low, high),
        draws=int(data["draws"]),
        candidates=int(data["candidates"]),
        spread_from=data["spread_from"],
        compared=data.get("compared", ""),
        deviation_s=float(data.get("deviation_s", 0.0)),
    )


def _stage_data(stage: StagePlan) -> dict[str, Any]:
    return {
        "layers": list(stage.layers),
        "submesh": [stage.submesh.num_hosts, stage.submesh.devices_per_host],
        "logical_mesh": list(stage.logical_mesh),
        "hosts": list(stage.hosts),
        "remat": stage.remat,
        "zero": stage.zero,
        "auto_sharding": dict(stage.options),
        **{name: getattr(stage, name) for name in _STAGE_FIGURES},
        **{name: getattr(stage, name) for name in _RARE_FIGURES if getattr(stage, name)},
        **({} if stage.offload is None else {"offload": _offload_data(stage.offload)}),
        **({} if stage.drawn is None else {"drawn": _drawn_data(stage.drawn)}),
        **{name: getattr(stage, name) for name in _DEGREES if getattr(stage, name) != getattr(StagePlan, name)},
        **({"memory_parts": dict(stage.memory_parts)} if stage.memory_parts else {}),
    }


def _offload_data(offload: StageOffload) -> dict[str, Any]:
    """Returns the data of a stage's offload: its shares and figures side by side."""
    data = dataclasses.asdict(offload)
    return {**data.pop("shares"), **data}


def _offload(data: OffloadData) -> StageOffload:
    given: dict[str, Any] = dict(data)
    shares = {field.name: given.pop(field.name) for field in dataclasses.fields(Offload) if field.name in given}
    return StageOffload(Offload(**shares), **given)


def _drawn_data(drawn: DrawnSeconds) -> dict[str, Any]:
    layers = [{"mean_s": layer.mean_s, "deviation_s": layer.deviation_s} for layer in drawn.layers]
    return {"mean_s": drawn.mean_s, "deviation_s": drawn.deviation_s, "layers": layers}


def _drawn(data: StageDrawnData) -> DrawnSeconds:
    layers = tuple(DrawnSeconds(float(each["mean_s"]), float(each["deviation_s"])) for each in data["layers"])
    return DrawnSeconds(float(data["mean_s"]), float(data["deviation_s"]), layers)


def _stage(data: StageData) -> StagePlan:
    names = *_STAGE_FIGURES, *_RARE_FIGURES
    figures: dict[str, Any] = {name: float(cast("float", data.get(name, 0.0))) for name in names}
    if "compute_s" not in data:
        figures["compute_s"] = max(figures["forward_s"] + figures["backward_s"] - figures["collective_s"], 0.0)
    first, last = map(int, data["layers"])
    return StagePlan(
        layers=(first, last),
        submesh=Submesh(*map(int, data["submesh"])),
        logical_mesh=tuple(map(int, data["logical_mesh"])),
        hosts=tuple(data["hosts"]),
        remat=data["remat"],
        zero=int(data["zero"]),
        options=dict(data.get("auto_sharding", {"force_batch_dim_to_mesh_dim": 0})),
        offload=_offload(data["offload"]) if "offload" in data else None,
        drawn=_drawn(data["drawn"]) if "drawn" in data else None,
        memory_parts=dict(data.get("memory_parts", {})),
        **{name: int(cast("int", data.get(name, getattr(StagePlan, name)))) for name in _DEGREES},
        **figures,
    )
