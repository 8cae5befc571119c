"""Plans as JSON files, version 1; `schemas/plan-1.json` has every key, from the types in `_plan_format.py`.

Keys that a plan can be run and shown without may be left out: they are 0, `auto_sharding` follows the logical mesh, and
nothing is said of `confidence`, `notes`, `contingencies`, `hardware` and `priced_by`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from alpa_dejavu._util.json_file import read_checked, write_whole
from alpa_dejavu._util.json_text import Path
from alpa_dejavu.plans._contingency_file import contingencies_data, contingencies_of, contingency_contradictions
from alpa_dejavu.problem import (
    ClusterSummary,
    Confidence,
    HostSummary,
    Plan,
    PricedBy,
    StagePlan,
    StepCorrection,
    Submesh,
)

if TYPE_CHECKING:
    from alpa_dejavu.plans.plan_format import ConfidenceData, HardwareData, HostData, PlanData, PricedByData, StageData

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


def plan_data(plan: Plan) -> dict[str, Any]:
    """Returns the plan as what JSON has: objects, lists, text and numbers."""
    return {
        "version": VERSION,
        "model": plan.model,
        "num_layers": plan.num_layers,
        "layer_option": plan.layer_option,
        "cluster": plan.cluster,
        **({} if plan.hardware is None else {"hardware": _hardware_data(plan.hardware)}),
        **({} if plan.priced_by is None else {"priced_by": dataclasses.asdict(plan.priced_by)}),
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
    """Returns the text of a plan's file.

    Raises:
        ValueError: a figure of the plan isn't finite.
    """
    return json.dumps(plan_data(plan), indent=2, allow_nan=False) + "\n"


def write_plan(plan: Plan, path: str | os.PathLike[str]) -> pathlib.Path:
    """Writes the file whole, or not at all.

    Raises:
        ValueError: there is no such folder, or a figure of the plan isn't finite.
    """
    file = pathlib.Path(path)
    write_whole(file, plan_text(plan))
    return file


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Reads a plan and checks it, alone: whether it fits a model and a cluster is seen where those are.

    Raises:
        ValueError: what is wrong with the file, in which line, and what would be right.
    """
    from alpa_dejavu.plans.plan_format import PlanData

    file = read_checked(pathlib.Path(path), PlanData, _REMEDY)
    for where, said in _contradictions(file.data):
        raise file.problem(where, said)
    return _plan(file.data)


def plan_of(data: Mapping[str, Any]) -> Plan:
    """Returns the plan that `plan_data` has made such data of; nothing is checked but its numbers."""
    return _plan(cast("PlanData", data))


def consistent_plan(data: PlanData) -> Plan:
    """Returns the plan of data that are as their format has them.

    Raises:
        ValueError: one key says another thing than others do.
    """
    for _, said in _contradictions(data):
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
        said["confidence"] = dataclasses.asdict(plan.confidence) | {"interval_s": list(plan.confidence.interval_s)}
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
    }


def _stage(data: StageData) -> StagePlan:
    figures = {name: float(cast("float", data.get(name, 0.0))) for name in _STAGE_FIGURES}
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
        **figures,
    )


def _contradictions(data: PlanData) -> Iterator[tuple[Path, str]]:
    """Yields where one key says another thing than others do."""
    yield from _of_stages(data["stages"], "stages")
    expected = data["stages"][-1]["layers"][1] + 1
    devices = sum(math.prod(stage["logical_mesh"]) for stage in data["stages"])
    if expected != data["num_layers"]:
        yield ("num_layers",), f"num_layers is {data['num_layers']}, but the stages have {expected} layers"
    if devices != data["num_devices"]:
        yield ("num_devices",), f"num_devices is {data['num_devices']}, but the stages have {devices}"
    low, high = data["confidence"]["interval_s"] if "confidence" in data else (0.0, 0.0)
    if low > high:
        yield ("confidence", "interval_s"), f"confidence.interval_s is [{low}, {high}], but must be [lower, upper]"
    batch, parts = data["batch"], data["num_micro_batches"]
    if batch is not None and batch % parts:
        yield ("num_micro_batches",), f"num_micro_batches is {parts}, which doesn't divide the batch of {batch}"
    if "hardware" in data:
        yield from _of_hardware(data["hardware"]["hosts"], data["stages"])
    if "contingencies" in data:
        yield from contingency_contradictions(data["contingencies"], expected, _of_stages)


def _of_hardware(hosts: Sequence[HostData], stages: Sequence[StageData]) -> Iterator[tuple[Path, str]]:
    """Yields where stages are on hosts that aren't there, or on more devices of one than it has."""
    left: dict[str, int] = {}
    for n, host in enumerate(hosts):
        if host["name"] in left:
            yield ("hardware", "hosts", n, "name"), f"hardware.hosts names {host['name']!r} twice"
        left[host["name"]] = host["num_devices"]
    for n, stage in enumerate(stages):
        place = ("stages", n, "hosts")
        for name in stage["hosts"]:
            if name not in left:
                yield place, f"stages[{n}].hosts names {name!r}, which hardware.hosts doesn't"
                continue
            left[name] -= stage["submesh"][1]
            if left[name] < 0:
                yield place, f"stages[{n}] and those before it take more devices of {name!r} than hardware.hosts has"


def _of_stages(stages: Sequence[StageData], name: str) -> Iterator[tuple[Path, str]]:
    """Yields where stages of a list contradict each other or themselves; places begin with `stages`."""
    expected = 0
    for n, stage in enumerate(stages):
        (first, last), (hosts, per_host) = stage["layers"], stage["submesh"]
        key, place = f"{name}[{n}]", ("stages", n)
        if first != expected or last < first:
            yield (*place, "layers"), f"{key}.layers is [{first}, {last}], but must go on from layer {expected}"
        size = math.prod(stage["logical_mesh"])
        if size != hosts * per_host:
            said = f"{key}.logical_mesh is {stage['logical_mesh']}, {size} devices, but its submesh has "
            yield (*place, "logical_mesh"), f"{said}{hosts * per_host}"
        if len(stage["hosts"]) != hosts:
            said = f"{key}.hosts names {len(stage['hosts'])} hosts, but its submesh has {hosts}"
            yield (*place, "hosts"), said
        expected = last + 1
