"""Contradictions in the data of a plan's file: one key says another thing than others do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from alpa_dejavu._util.json_text import Path
from alpa_dejavu.plans.outline import DEGREES
from alpa_dejavu.problem import MeshConfig
from alpa_dejavu.problem.run import schedule_form

_Data: TypeAlias = Mapping[str, Any]
_ROUNDED = 1e-6
"""Figures are equal up to this share."""
_ABOVE = 2.0
"""Plans of before 0.3.0 have the bound of slicers' closed form, which doesn't know where stages will be placed."""
_LEAST_BYTES = 1e-3
"""Less memory than this no device has, and no stage keeps, however many devices divide it."""
_PARTS = {
    "forward_collective_s": ("collective_s", "forward_s"),
    "forward_boundary_s": ("boundary_s",),
    "synchronisation_s": ("per_step_s",),
    "backward_weight_s": ("backward_s",),
}
"""Figures of a stage that are parts of others."""


def contradictions(data: _Data) -> Iterator[tuple[Path, str]]:
    """Yields each place where the data of a plan's file contradict themselves, with what is wrong there."""
    yield from _of_stages(data["stages"], "stages")
    expected = data["stages"][-1]["layers"][1] + 1
    chunks = schedule_form(data["schedule"]).chunks
    on_submeshes = data["stages"][: len(data["stages"]) // chunks]
    devices = sum(math.prod(stage["logical_mesh"]) for stage in on_submeshes)
    if expected != data["num_layers"]:
        yield ("num_layers",), f"num_layers is {data['num_layers']}, but the stages have {expected} layers"
    yield from _of_chunks(data["stages"], data["schedule"])
    yield from _of_step(data, data["schedule"], "")
    bound, most = data.get("lower_bound_s", 0.0), _ABOVE * max(data["iteration_time_s"], _closed_form_s(data))
    if bound > most:
        why = f"lower_bound_s is {bound}, but must be at most {most}, which these stages take a step"
        yield ("lower_bound_s",), why
    if devices != data["num_devices"]:
        yield ("num_devices",), f"num_devices is {data['num_devices']}, but the stages have {devices}"
    low, high = data["confidence"]["interval_s"] if "confidence" in data else (0.0, 0.0)
    if low > high:
        yield ("confidence", "interval_s"), f"confidence.interval_s is [{low}, {high}], but must be [lower, upper]"
    batch, parts = data["batch"], data["num_micro_batches"]
    if batch is not None and batch % parts:
        yield ("num_micro_batches",), f"num_micro_batches is {parts}, which doesn't divide the batch of {batch}"
    if "hardware" in data:
        yield from _of_hardware(data["hardware"]["hosts"], on_submeshes)
    if "contingencies" in data:
        yield from _of_contingencies(data["contingencies"], expected, data["schedule"])


def _of_chunks(stages: Sequence[_Data], schedule: str) -> Iterator[tuple[Path, str]]:
    """Yields where the stages can't share submeshes as the schedule has them do."""
    form = schedule_form(schedule)
    if len(stages) % form.chunks:
        yield ("stages",), f"stages are {len(stages)}, but {schedule} has {form.chunks} on each submesh"
        return
    for n, submesh in enumerate(form.submesh_of(len(stages))):
        for key in ("submesh", "logical_mesh", "hosts"):
            own, shared = stages[n].get(key), stages[submesh].get(key)
            if own != shared:
                why = f"stages[{n}].{key} is {own}, but in {schedule} it is on the submesh of stages[{submesh}], with "
                yield ("stages", n, key), f"{why}{shared}"


def _of_hardware(hosts: Sequence[_Data], stages: Sequence[_Data]) -> Iterator[tuple[Path, str]]:
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


def _of_stages(stages: Sequence[_Data], name: str) -> Iterator[tuple[Path, str]]:
    """Yields where stages of a list contradict each other or themselves; places begin with `stages`."""
    expected = 0
    for n, stage in enumerate(stages):
        (first, last), (hosts, per_host) = stage["layers"], stage["submesh"]
        key, place = f"{name}[{n}]", ("stages", n)
        if first != expected or last < first:
            yield (*place, "layers"), f"{key}.layers is [{first}, {last}], but must go on from layer {expected}"
        size = math.prod(stage["logical_mesh"])
        if size != hosts * per_host:
            but = f"{key}.logical_mesh is {stage['logical_mesh']}, {size} devices, but its submesh has "
            yield (*place, "logical_mesh"), f"{but}{hosts * per_host}"
        elif why := _of_degrees(stage):
            yield (*place, why.partition(" ")[0]), f"{key}.{why}"
        if len(stage["hosts"]) != hosts:
            but = f"{key}.hosts names {len(stage['hosts'])} hosts, but its submesh has {hosts}"
            yield (*place, "hosts"), but
        for name, value, whole, but in _of_figures(stage):
            yield (*place, name), f"{key}.{name} is {value}, but must be {but} {whole}"
        if "offload" in stage:
            yield from _of_offload(stage["offload"], (*place, "offload"), f"{key}.offload")
        expected = last + 1


def _of_degrees(stage: _Data) -> str:
    """Returns why the devices of a stage can't be divided as its degrees have it; empty where they can."""
    data, *others = stage["logical_mesh"]
    degrees = {name: stage[name] for name in DEGREES if name in stage}
    try:
        MeshConfig((data, math.prod(others)), data, math.prod(others), **degrees)
    except ValueError as error:
        return str(error).removeprefix("mesh config: ")
    return ""


def _of_figures(stage: _Data) -> Iterator[tuple[str, float, float, str]]:
    """Yields each figure of a stage that others contradict: its name, its value, theirs, and what it must be."""
    figures = {key: value for key, value in stage.items() if isinstance(value, (int, float))}
    for part, wholes in _PARTS.items():
        for whole in wholes:
            if whole in figures and figures.get(part, 0.0) > figures[whole] * (1 + _ROUNDED):
                yield part, figures[part], figures[whole], f"at most {whole},"
    both_s = stage["forward_s"] + stage["backward_s"]
    collective_s = stage.get("collective_s", 0.0)
    if collective_s > both_s * (1 + _ROUNDED):
        yield "collective_s", collective_s, both_s, "at most forward_s plus backward_s,"
    if "compute_s" in stage and not _equal(stage["compute_s"] + collective_s, both_s):
        left = both_s - collective_s
        yield "compute_s", stage["compute_s"], left, "forward_s plus backward_s without collective_s,"
    memory = stage["memory_bytes"]
    kept = stage.get("resident_bytes", 0.0) + stage.get("temporary_bytes", 0.0)
    if kept > memory * (1 + _ROUNDED):
        yield "memory_bytes", memory, kept, "at least resident_bytes plus temporary_bytes,"
    parts = math.fsum(stage.get("memory_parts", {}).values())
    if parts and not _equal(parts, memory):
        yield "memory_bytes", memory, parts, "the sum of memory_parts,"
    for name, value in (("memory_bytes", memory), ("memory_limit_bytes", stage["memory_limit_bytes"])):
        if 0 < value < _LEAST_BYTES:
            yield name, value, _LEAST_BYTES, "0, or at least"


def _equal(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=_ROUNDED, abs_tol=_ROUNDED**2)


def _of_step(data: _Data, schedule: str, name: str) -> Iterator[tuple[Path, str]]:
    """Yields where a step takes less than its micro-batches take on a submesh, one after the other."""
    passes_s = [stage["forward_s"] + stage["backward_s"] for stage in data["stages"]]
    on = schedule_form(schedule).submesh_of(len(passes_s))
    slowest_s = max(math.fsum(own for own, submesh in zip(passes_s, on, strict=True) if submesh == n) for n in {*on})
    step_s, least_s = data["iteration_time_s"], data["num_micro_batches"] * slowest_s
    if step_s < least_s * (1 - _ROUNDED):
        why = f"{name}iteration_time_s is {step_s}, but must be at least {least_s}, which its micro-batches take"
        yield ("iteration_time_s",), f"{why} on the slowest devices alone"


def _closed_form_s(data: _Data) -> float:
    """Returns the seconds of a step as slicers count them, at most: all stages, and the slowest for all others."""
    costs_s = [stage["forward_s"] + stage["backward_s"] + stage.get("boundary_s", 0.0) for stage in data["stages"]]
    once_s = math.fsum(stage["per_step_s"] for stage in data["stages"])
    return math.fsum(costs_s) + (data["num_micro_batches"] - 1) * max(costs_s) + once_s


def _of_offload(data: _Data, place: Path, key: str) -> Iterator[tuple[Path, str]]:
    """Yields where a stage's hosts would keep gradients or parameters whose optimizer state they don't."""
    optimizer = data.get("optimizer", 0.0)
    for kind in ("gradients", "parameters"):
        share = data.get(kind, 0.0)
        if share > optimizer:
            yield (*place, kind), f"{key}.{kind} is {share}, but must be at most the optimizer's share, {optimizer}"


def _of_contingencies(data: _Data, num_layers: int, schedule: str) -> Iterator[tuple[Path, str]]:
    """Yields where contingencies contradict each other or themselves."""
    plans = data["plans"]
    for n, plan in enumerate(plans):
        where, name = ("contingencies", "plans", n), f"contingencies.plans[{n}].stages"
        for place, why in _of_stages(plan["stages"], name):
            yield (*where, *place), why
        for place, why in _of_chunks(plan["stages"], schedule):
            yield (*where, *place), f"contingencies.plans[{n}].{why}"
        for place, why in _of_step(plan, schedule, f"contingencies.plans[{n}]."):
            yield (*where, *place), why
        end = plan["stages"][-1]["layers"][1] + 1
        if end != num_layers:
            yield (*where, "stages"), f"{name} have {end} layers, but num_layers is {num_layers}"
    for lost, own in data["hosts"].items():
        place, key = ("contingencies", "hosts", lost), f"contingencies.hosts.{lost}"
        if own["plan"] >= len(plans):
            yield (*place, "plan"), f"{key}.plan is {own['plan']}, but there are {len(plans)} plans"
            continue
        asked, named = [s["submesh"][0] for s in plans[own["plan"]]["stages"]], [len(on) for on in own["hosts"]]
        if asked != named:
            yield (*place, "hosts"), f"{key}.hosts names {named} hosts, but the stages' submeshes have {asked}"
        if any(lost in on for on in own["hosts"]):
            yield (*place, "hosts"), f"{key}.hosts names {lost}, which is lost"
        if any(layer >= num_layers for layer in own["moved_layers"]):
            yield (*place, "moved_layers"), f"{key}.moved_layers is {own['moved_layers']} of {num_layers} layers"
