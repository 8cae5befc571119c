"""Files of scenarios and of their runs, version 1, as declared types: every key, its units, and what it must be."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Annotated, Any, Literal, TypeAlias, final

import numpy as np
from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util.dataclass_format import Rare, Stored, chosen, data_of, object_of, typed_dict_of
from alpa_dejavu._util.format_fields import (
    WHOLE,
    Bytes,
    Index,
    NotNegative,
    Number,
    Positive,
    Seconds,
    Size,
    Text,
    at_most,
    listed,
    stated,
    whole,
)
from alpa_dejavu._util.json_file import CheckedFile, read_checked, write_whole
from alpa_dejavu.playground.history import TIMELINE, History
from alpa_dejavu.playground.job import Until
from alpa_dejavu.playground.scenarios._scenario import Question, Runs, ScenarioRun

__all__ = ["RunsData", "ScenarioData", "ScenarioFile", "read_runs", "runs_text", "write_runs"]

_SecondsList: TypeAlias = Annotated[list[Seconds], listed("a list of seconds, as many as its neighbours have")]
_Workers: TypeAlias = Annotated[
    list[Annotated[int, whole("a worker's number, or -1", -1), WHOLE]],
    listed("a list of workers' numbers or -1, as many as its neighbours have"),
]


class TimelineData(TypedDict):
    """The intervals of workers' time in a run, as `History.timeline` has them, a list for each field."""

    worker: Annotated[list[Index], listed("a list of whole numbers, as many as its neighbours have")]
    kind: Annotated[
        list[Annotated[int, whole("0, 1 or 2", 0, 2), WHOLE]],
        listed("a list of 0 (computing), 1 (sending) or 2 (failed), as many as its neighbours have"),
    ]
    other: _Workers
    start_s: _SecondsList
    end_s: _SecondsList


_TIMELINE = Annotated[TimelineData, stated("an object with lists of the intervals of workers' time")]
_RUN: Any = typed_dict_of(History, {"exchange": Text, "seed": Index}, timeline=NotRequired[_TIMELINE])
_RUNS = Annotated[list[Annotated[_RUN, stated("a run")]], listed("a list of at least one run", min_length=1)]
_VERSION = Annotated[Literal[1], stated("1, the version of runs that this release reads"), WHOLE]
RunsData: Any = typed_dict_of(Runs, {"version": _VERSION}, runs=_RUNS)
_REMEDY = "schemas/runs-1.json says what each key may be, and `alpa-dejavu playground run --json` writes a right one"
_LOOKS = ("loss", "accuracy", "consensus", "steps", "samples", "sent_bytes")
_WORKERS, _LINKS = ("busy_s", "idle_s", "worker_steps"), ("link_bytes", "link_messages")
"""The arrays of a history that have an element for each look, each worker and each link."""


def runs_text(runs: Runs) -> str:
    """Returns the JSON text of a scenario's runs. The models' parameters aren't in it."""
    # A line for each run and each of its keys: short enough to look at, and to compare.
    lines = ",\n".join(
        "{" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in _run_data(run).items()) + "}"
        for run in runs.runs
    )
    return json.dumps({"version": 1, **data_of(runs)})[:-1] + f', "runs": [\n{lines}]}}\n'


def write_runs(runs: Runs, path: str | os.PathLike[str]) -> None:
    """Writes a scenario's runs to a JSON file, whole or not at all.

    Raises:
        ValueError: the file can't be written.
    """
    write_whole(pathlib.Path(path), runs_text(runs))


def read_runs(path: str | os.PathLike[str]) -> Runs:
    """Reads a file of a scenario's runs; their histories have no parameters.

    Raises:
        ValueError: there is no such file, or it is wrong; says what and where.
    """
    file: CheckedFile[Any] = read_checked(pathlib.Path(path), RunsData, _REMEDY)
    histories = tuple(_read_run(file, n) for n in range(len(file.data["runs"])))
    runs = object_of(Runs, file.data, runs=histories)
    names = {run.exchange for run in runs.runs}
    for key in ("better", "than"):
        if runs.question is not None and getattr(runs.question, key) not in names:
            text = f"{key} is {getattr(runs.question, key)!r}, but must be an exchange of the runs"
            raise file.problem(("question", key), text)
    return runs


def _run_data(run: ScenarioRun) -> dict[str, Any]:
    timeline = run.history.timeline
    data = {"exchange": run.exchange, "seed": run.seed, **data_of(run.history)}
    if len(timeline):
        data["timeline"] = {str(name): timeline[name].tolist() for name in TIMELINE.names or ()}
    return data


def _read_run(file: CheckedFile[Any], n: int) -> ScenarioRun:
    data, where, workers = file.data["runs"][n], ("runs", n), len(file.data["hosts"])
    for names, count in ((_LOOKS, len(data["time_s"])), (_WORKERS, workers), (_LINKS, len(data["links"]))):
        for name in names:
            if len(data[name]) != count:
                text = f"{name} has {len(data[name])} elements, but must have {count}, as many as its neighbours"
                raise file.problem((*where, name), text)
    for name in ("time_s", "steps", "samples", "sent_bytes"):
        falls = np.flatnonzero(np.diff(data[name]) < 0)
        if falls.size:
            at = int(falls[0]) + 1
            text = f"{name}[{at}] is {data[name][at]}, but must be at least {data[name][at - 1]}, the one before it"
            raise file.problem((*where, name, at), text)
    conditions, violated_s = file.data.get("conditions", []), tuple(data.get("violated_s", ()))
    if violated_s and len(violated_s) != len(conditions):
        text = f"violated_s has {len(violated_s)} elements, but must have {len(conditions)}, one for each condition"
        raise file.problem((*where, "violated_s"), text)
    timeline = np.zeros(len(data.get("timeline", {"worker": []})["worker"]), TIMELINE)
    for name, values in data.get("timeline", {}).items():
        if len(values) != len(timeline):
            text = f"{name} has {len(values)} elements, but must have {len(timeline)}, as many as its neighbours"
            raise file.problem((*where, "timeline", name), text)
        if name in ("worker", "other") and max(values, default=0) >= workers:
            text = f"{name} has the worker {max(values)}, but there are {workers}"
            raise file.problem((*where, "timeline", name), text)
        timeline[name] = values
    for at in np.flatnonzero(timeline["end_s"] < timeline["start_s"])[:1].tolist():
        text = f"end_s[{at}] is {timeline['end_s'][at]}, but must be at least {timeline['start_s'][at]}, as it began"
        raise file.problem((*where, "timeline", "end_s", at), text)
    history = object_of(History, data, params=np.zeros(0, np.float32), timeline=timeline)
    return ScenarioRun(data["exchange"], data["seed"], history)


_Named: TypeAlias = Annotated[
    Text | Annotated[dict[str, dict[str, Any] | None], stated("", min_length=1, max_length=1), at_most(1)],
    stated("a name, or one name with its settings, such as {stale-server: {bound: 4}}"),
]
_ComputeSeconds: TypeAlias = Annotated[
    Any,
    Stored(Literal["predicted", "planned"] | Seconds | Annotated[list[Seconds], listed("", min_length=1)]),
    stated('"predicted", "planned", or seconds of a gradient: of all workers, or a list with those of each'),
]
_LeftOut: TypeAlias = Annotated[float, stated("a share of 0 to 1, 1 for a whole block", ge=0, le=1)]
_Seed: TypeAlias = Annotated[int, whole("a whole number of at least 0", 0, 2**31 - 1), WHOLE]
_Exchanges: TypeAlias = Annotated[tuple[_Named, ...], listed("a list of at least one exchange", min_length=1)]


@final
@dataclasses.dataclass(frozen=True)
class ClusterPart:
    """The cluster of a scenario: a machine type by name, or a file, and how much of it is used."""

    name: Annotated[str, stated("a known machine, such as p3.16xlarge, or a machine or cluster file", min_length=1)]
    hosts: Rare[Size] = 1
    devices_per_host: Rare[Size | None] = None


@final
@dataclasses.dataclass(frozen=True)
class WorkersPart:
    """The workers of a scenario, where they aren't the devices of all hosts: on given hosts, or whole pipelines."""

    hosts: Rare[Annotated[tuple[Index, ...], listed("a list of the index of each worker's host", min_length=1)]] = ()
    plans: Rare[Annotated[tuple[Text, ...], listed("a list of plan files, a pipeline of each", min_length=1)]] = ()
    copies: Rare[Size | None] = None


@final
@dataclasses.dataclass(frozen=True)
class OptimizerPart:
    """The optimizer of a scenario, by name, with its rate."""

    name: Annotated[str, chosen(("sgd", "adam")), stated('"sgd" or "adam"')]
    rate: Positive
    momentum: Rare[Annotated[float | None, stated("a number of at least 0 and below 1", ge=0, lt=1)]] = None


@final
@dataclasses.dataclass(frozen=True)
class TargetPart:
    """A figure that the runs of a scenario are timed to: a held-out loss, or a share of predictions that are right."""

    loss: Rare[Number | None] = None
    accuracy: Rare[Annotated[float | None, stated("a share above 0 and at most 1", gt=0, le=1)]] = None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _ChangeablePart:
    """The keys that a scenario needn't have, and that its variants may change; None: a key isn't there."""

    spread: Rare[Annotated[Any, Stored(NotNegative)]] = None
    batch: Rare[
        Annotated[
            Any,
            Stored(Size | Annotated[list[Size], listed("", min_length=1)]),
            stated("samples of a gradient: of all workers, or a list with those of each"),
        ]
    ] = None
    drop: Rare[
        Annotated[
            Any,
            Stored(list[list[_LeftOut]]),
            listed("a list with, for each worker, the share of each layer's units that it leaves out", min_length=1),
        ]
    ] = None
    data: Rare[Annotated[_Named | None, stated("a split, such as independent or {dirichlet: {alpha: 0.1}}")]] = None
    moves: Rare[
        Annotated[_Named | None, stated("a policy of moving samples, such as {random-share: {share: 0.1}}")]
    ] = None
    optimizer: Rare[Annotated[OptimizerPart | None, stated("an object such as {name: sgd, rate: 0.1}")]] = None
    faults: Rare[Annotated[tuple[_Named, ...], listed("a list of faults")]] = ()


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class VariantPart(_ChangeablePart):
    """The keys of a scenario that one of its variants has in their place."""

    compute_s: Rare[_ComputeSeconds] = None
    exchanges: Rare[_Exchanges] = ()


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ScenarioFile(_ChangeablePart):
    """A scenario of the playground: what is trained, on which workers, by which exchanges, and what goes wrong."""

    problem: Rare[
        Annotated[Any, Stored(Text | None), stated("the name of a problem, or null: time alone is simulated")]
    ] = None
    num_bytes: Rare[Annotated[Any, Stored(Bytes)]] = None
    cluster: Annotated[ClusterPart, stated("an object such as {name: p3.16xlarge, hosts: 2}")]
    workers: Rare[
        Annotated[WorkersPart | None, stated("an object such as {hosts: [0, 0, 1]}, or {plans: [plan.json]}")]
    ] = None
    compute_s: _ComputeSeconds
    sample_bytes: Rare[Annotated[Any, Stored(Bytes)]] = None
    exchanges: _Exchanges
    conditions: Rare[Annotated[tuple[_Named, ...], listed("a list of conditions")]] = ()
    until: Annotated[Any, Stored(Until), stated("an object with seconds, or steps, or both")]
    seeds: Rare[
        Annotated[tuple[_Seed, ...], listed("a list of one to 1000 whole numbers", min_length=1, max_length=1000)]
    ] = (0,)
    looks: Rare[Index] = 50
    target: Rare[Annotated[TargetPart | None, stated("an object with either loss or accuracy")]] = None
    question: Rare[Annotated[Question | None, stated("an object with text, better, than and by")]] = None


_VARIANT: Any = typed_dict_of(VariantPart)
_VARIANTS: Any = Annotated[
    dict[str, Annotated[_VARIANT, stated("an object with keys of the scenario, such as {data: sorted}")]],
    stated("an object with the keys that differ, by the variants' names", min_length=1),
]
_VERSION_READ = Annotated[Literal[1], stated("1, the version of scenarios that this release reads"), WHOLE]
ScenarioData: Any = typed_dict_of(ScenarioFile, {"version": _VERSION_READ}, variants=NotRequired[_VARIANTS])
