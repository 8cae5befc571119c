"""Files of a scenario's runs, version 1: JSON that is written whole, and checked by a declared type when it is read."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util.format_fields import (
    WHOLE,
    Bytes,
    Index,
    Seconds,
    Text,
    Words,
    file_format,
    listed,
    stated,
    whole,
)
from alpa_dejavu._util.json_file import CheckedFile, read_checked, write_whole
from alpa_dejavu.playground.history import TIMELINE, History
from alpa_dejavu.playground.scenarios._scenario import Question, Runs, RunTarget, ScenarioRun
from alpa_dejavu.playground.scenarios.scenario_format import QuestionData

__all__ = ["read_runs", "runs_text", "write_runs"]

_Number: TypeAlias = Annotated[float, stated("a number")]
_SecondsList: TypeAlias = Annotated[list[Seconds], listed("a list of seconds, as many as its neighbours have")]
_Counts: TypeAlias = Annotated[list[Index], listed("a list of whole numbers, as many as its neighbours have")]
_BytesList: TypeAlias = Annotated[list[Bytes], listed("a list of bytes, as many as its neighbours have")]
_Figures: TypeAlias = Annotated[
    list[Annotated[float | None, stated("a number, or null")]],
    listed("a list of numbers or nulls, as many as its neighbours have"),
]
_Workers: TypeAlias = Annotated[
    list[Annotated[int, whole("a worker's number, or -1", -1), WHOLE]],
    listed("a list of workers' numbers or -1, as many as its neighbours have"),
]


class TimelineData(TypedDict):
    """The intervals of workers' time in a run, as `History.timeline` has them, a list for each field."""

    worker: _Counts
    kind: Annotated[
        list[Annotated[int, whole("0, 1 or 2", 0, 2), WHOLE]],
        listed("a list of 0 (computing), 1 (sending) or 2 (failed), as many as its neighbours have"),
    ]
    other: _Workers
    start_s: _SecondsList
    end_s: _SecondsList


class RunData(TypedDict):
    """A run of a scenario, as `History` has it, without the parameters."""

    exchange: Text
    seed: Index
    end: Text
    time_s: Annotated[list[Seconds], listed("a list of seconds", min_length=1)]
    loss: _Figures
    accuracy: _Figures
    consensus: _Figures
    steps: _Counts
    samples: _Counts
    sent_bytes: _BytesList
    staleness: _Counts
    busy_s: _SecondsList
    idle_s: Annotated[list[_Number], listed("a list of seconds, as many as its neighbours have")]
    worker_steps: _Counts
    lost_updates: Index
    links: Annotated[
        list[Annotated[list[Index], listed("a pair of hosts", min_length=2, max_length=2)]],
        listed("a list of pairs of hosts"),
    ]
    link_bytes: _BytesList
    link_messages: _Counts
    notes: NotRequired[Annotated[list[Text], listed("a list of texts")]]
    violated_s: NotRequired[
        Annotated[list[Seconds | None], listed("a list of seconds or nulls, as many as there are conditions")]
    ]
    timeline: NotRequired[Annotated[TimelineData, stated("an object with lists of the intervals of workers' time")]]


class ReachedData(TypedDict):
    """A measure and the value that the runs of a file are timed to."""

    measure: Annotated[Literal["loss", "accuracy"], stated('"loss" or "accuracy"')]
    value: _Number


@file_format
class RunsData(TypedDict):
    """All runs of a scenario of the playground."""

    version: Annotated[Literal[1], stated("1, the version of runs that this release reads"), WHOLE]
    scenario: Words
    problem: Annotated[Text | None, stated("the name of a problem, or null")]
    hosts: Annotated[list[Text], listed("a list of the host of each worker", min_length=1)]
    conditions: NotRequired[Annotated[list[Text], listed("a list of the names of conditions")]]
    target: Annotated[ReachedData | None, stated('an object such as {"measure": "loss", "value": 0.5}, or null')]
    question: NotRequired[Annotated[QuestionData, stated("an object with text, better, than and by")]]
    runs: Annotated[list[Annotated[RunData, stated("a run")]], listed("a list of at least one run", min_length=1)]


_REMEDY = "schemas/runs-1.json says what each key may be, and `alpa-dejavu playground run --json` writes a right one"
_LOOKS = {"loss": np.float64, "accuracy": np.float64, "consensus": np.float64, "steps": np.int64, "samples": np.int64,
          "sent_bytes": np.float64}  # fmt: skip
_RISING = ("time_s", "steps", "samples", "sent_bytes")
_WORKERS = {"busy_s": np.float64, "idle_s": np.float64, "worker_steps": np.int64}
_LINKS = {"link_bytes": np.float64, "link_messages": np.int64}
"""The arrays of a history that have an element for each look, each worker and each link."""


def runs_text(runs: Runs) -> str:
    """Returns the JSON text of a scenario's runs. The models' parameters aren't in it."""
    target = None if runs.target is None else {"measure": runs.target.measure, "value": runs.target.value}
    data: dict[str, Any] = {"version": 1, "scenario": runs.name, "problem": runs.problem, "hosts": list(runs.hosts)}
    data |= {"conditions": list(runs.conditions)} if runs.conditions else {}
    data["target"] = target
    if runs.question is not None:
        data["question"] = dataclasses.asdict(runs.question)
    # A line for each run and each of its keys: short enough to look at, and to compare.
    lines = ",\n".join(
        "{" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in _run_data(run).items()) + "}"
        for run in runs.runs
    )
    return json.dumps(data)[:-1] + f', "runs": [\n{lines}]}}\n'


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
    file = read_checked(pathlib.Path(path), RunsData, _REMEDY)
    data = file.data
    target = None if data["target"] is None else RunTarget(data["target"]["measure"], data["target"]["value"])
    runs = tuple(_read_run(file, n) for n in range(len(data["runs"])))
    question = Question(**data["question"]) if "question" in data else None
    names = {run.exchange for run in runs}
    for key in ("better", "than"):
        if question is not None and getattr(question, key) not in names:
            text = f"{key} is {getattr(question, key)!r}, but must be an exchange of the runs"
            raise file.problem(("question", key), text)
    conditions = tuple(data.get("conditions", ()))
    return Runs(data["scenario"], data["problem"], tuple(data["hosts"]), target, runs, conditions, question)


def _run_data(run: ScenarioRun) -> dict[str, Any]:
    history = run.history
    fields: dict[str, Any] = {"exchange": run.exchange, "seed": run.seed, "end": history.end}
    for name in ("time_s", *_LOOKS, "staleness", *_WORKERS, "links", *_LINKS):
        fields[name] = _plain(getattr(history, name))
    fields["lost_updates"] = history.lost_updates
    if history.notes:
        fields["notes"] = list(history.notes)
    if history.violated_s:
        fields["violated_s"] = list(history.violated_s)
    if len(history.timeline):
        fields["timeline"] = {str(name): history.timeline[name].tolist() for name in TIMELINE.names or ()}
    return fields


def _plain(values: Any) -> Any:
    if values.dtype.kind != "f":
        return values.tolist()
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _read_run(file: CheckedFile[RunsData], n: int) -> ScenarioRun:
    data: Any = file.data["runs"][n]
    where = ("runs", n)
    workers, arrays = len(file.data["hosts"]), dict[str, Any]()
    for names, count in ((_LOOKS, len(data["time_s"])), (_WORKERS, workers), (_LINKS, len(data["links"]))):
        for name, dtype in names.items():
            if len(data[name]) != count:
                text = f"{name} has {len(data[name])} elements, but must have {count}, as many as its neighbours"
                raise file.problem((*where, name), text)
            arrays[name] = np.array(data[name], dtype)
    for name in _RISING:
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
    return ScenarioRun(data["exchange"], data["seed"], History(
        time_s=np.array(data["time_s"]), staleness=np.array(data["staleness"], np.int64),
        lost_updates=data["lost_updates"], links=np.array(data["links"], np.int64).reshape(-1, 2),
        params=np.zeros(0, np.float32), end=data["end"], timeline=timeline,
        notes=tuple(data.get("notes", ())), violated_s=violated_s, **arrays,
    ))  # fmt: skip
