"""Plans as JSON files, version 1; `schemas/plan-1.json` has every key, from the annotations of `Plan` and its parts.

Keys that a plan can be run and shown without may be left out: they are 0, `auto_sharding` follows the logical mesh, and
nothing is said of `confidence`, `notes`, `contingencies`, `hardware` and `priced_by`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, final

from typing_extensions import NotRequired

from alpa_dejavu._util.dataclass_format import Inline, Key, data_of, object_of, typed_dict_of
from alpa_dejavu._util.format_fields import WHOLE, SecondsAboveZero, Text, at_most, listed, stated, whole
from alpa_dejavu._util.json_file import CheckedFile, read_checked, write_whole
from alpa_dejavu.plans._contradictions import contradictions
from alpa_dejavu.problem import Contingency, MicroBatches, Moves, Plan, StagePlan, Stages

VERSION = 1
_REMEDY = "`alpa-dejavu plan --json FILE` writes plans in version 1"
_VERSION_KEY = Annotated[Literal[1], stated("1, the version of plan files that this release reads"), WHOLE]


@functools.cache
def plan_format() -> Any:
    """Returns the `TypedDict` of a plan file's data: every key, and what it must be."""
    return typed_dict_of(Plan, {"version": _VERSION_KEY}, contingencies=NotRequired[typed_dict_of(Fallbacks)])


def plan_data(plan: Plan) -> dict[str, Any]:
    """Returns a plan as the JSON data of its file: objects, lists, text and numbers."""
    fallbacks = {"contingencies": data_of(fallbacks_of(plan.contingencies))} if plan.contingencies else {}
    return {"version": VERSION, **data_of(plan), **fallbacks}


def plan_text(plan: Plan) -> str:
    """Returns the text of a plan's JSON file. Raises ValueError if a figure of the plan isn't finite."""
    return json.dumps(plan_data(plan), indent=2, allow_nan=False) + "\n"


def write_plan(plan: Plan, path: str | os.PathLike[str]) -> pathlib.Path:
    """Writes a plan to a JSON file, whole or not at all, and returns its path. Raises ValueError if there is no such
    folder, or a figure of the plan isn't finite.
    """
    file = pathlib.Path(path)
    write_whole(file, plan_text(plan))
    return file


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Reads a plan from its JSON file and checks it, but not whether it fits a model and a cluster. Raises ValueError
    if something is wrong with the file; says what, in which line, and what would be right.
    """
    file: CheckedFile[dict[str, Any]] = read_checked(pathlib.Path(path), plan_format(), _REMEDY)
    for where, what in contradictions(file.data):
        raise file.problem(where, what)
    return plan_of(file.data)


def plan_of(data: Mapping[str, Any]) -> Plan:
    """Returns the plan that the data of a plan's file describe; only what a `Plan` and its stages check is checked."""
    contingencies = {}
    if "contingencies" in data:
        fallbacks = data["contingencies"]
        plans = list(map(_with_whole_stages, fallbacks["plans"]))
        contingencies = contingencies_of(object_of(Fallbacks, {**fallbacks, "plans": plans}))
    return object_of(Plan, _with_whole_stages(data), contingencies=contingencies)


def consistent_plan(data: Mapping[str, Any]) -> Plan:
    """Returns the plan that the data of a file describe. Raises ValueError if keys contradict each other."""
    for _, what in contradictions(data):
        raise ValueError(what)
    return plan_of(data)


def _with_whole_stages(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a plan's data, whose stages have what follows for them where it isn't told."""
    stages = []
    for stage in data["stages"]:
        compute_s = stage["forward_s"] + stage["backward_s"] - stage.get("collective_s", 0.0)
        follows = {"auto_sharding": {"force_batch_dim_to_mesh_dim": 0}, "compute_s": max(compute_s, 0.0)}
        stages.append(follows | stage)
    return {**data, "stages": stages}


_Hosts: TypeAlias = Annotated[tuple[Text, ...], listed("a list of host names", min_length=1)]


@final
@dataclasses.dataclass(frozen=True)
class FallbackStages:
    """The stages that are run once one of several hosts is lost; their hosts are those of the first of these."""

    step_s: Annotated[SecondsAboveZero, Key("iteration_time_s")]
    num_micro_batches: MicroBatches
    stages: Stages


@final
@dataclasses.dataclass(frozen=True)
class LostHost:
    """The loss of a host: the number of the fallback's stages, the hosts that run each, and what moves for it."""

    plan: Annotated[int, whole("a whole number: which of contingencies.plans")]
    hosts: Annotated[tuple[_Hosts, ...], listed("a list of host names for each stage")]
    unused: Annotated[tuple[Text, ...], listed("a list of host names")]
    moves: Inline[Moves]


@final
@dataclasses.dataclass(frozen=True)
class Fallbacks:
    """All fallbacks of a plan, each once, and the hosts whose loss they are for."""

    plans: Annotated[tuple[FallbackStages, ...], listed("a list of at least one plan", min_length=1)]
    hosts: Annotated[Mapping[str, LostHost], stated("an object of hosts and what is run without each"), at_most(10_000)]


def fallbacks_of(contingencies: Mapping[str, Contingency]) -> Fallbacks:
    """Returns a plan's contingencies, by the name of the lost host, as its file has them."""
    plans: list[FallbackStages] = []
    numbers: dict[object, int] = {}
    hosts: dict[str, LostHost] = {}
    for lost, contingency in contingencies.items():
        key = contingency.step_s, contingency.num_micro_batches, tuple(map(_shape, contingency.stages))
        if key not in numbers:
            numbers[key] = len(plans)
            plans.append(FallbackStages(contingency.step_s, contingency.num_micro_batches, contingency.stages))
        on = tuple(stage.hosts for stage in contingency.stages)
        hosts[lost] = LostHost(numbers[key], on, contingency.unused, contingency.moves)
    return Fallbacks(tuple(plans), hosts)


def _shape(stage: StagePlan) -> tuple[object, ...]:
    return stage.layers, stage.submesh, stage.logical_mesh, stage.remat, stage.zero


def contingencies_of(fallbacks: Fallbacks) -> dict[str, Contingency]:
    """Returns a plan's contingencies, by the name of the lost host, from what its file has."""
    contingencies = {}
    for lost, host in fallbacks.hosts.items():
        plan = fallbacks.plans[host.plan]
        stages = tuple(dataclasses.replace(stage, hosts=on) for stage, on in zip(plan.stages, host.hosts, strict=True))
        contingencies[lost] = Contingency(stages, plan.step_s, plan.num_micro_batches, host.moves, host.unused)
    return contingencies
