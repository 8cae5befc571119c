"""Files of a scenario's runs: JSON that is written whole and checked when it is read."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from alpa_dejavu._util.json_file import CheckedFile, read_checked, write_whole
from alpa_dejavu.playground.history import TIMELINE, History
from alpa_dejavu.playground.scenarios._scenario import Question, Run, Runs, Target

if TYPE_CHECKING:
    from alpa_dejavu.playground.scenarios.runs_format import RunsData

__all__ = ["read_runs", "runs_text", "write_runs"]

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
    from alpa_dejavu.playground.scenarios.runs_format import RunsData

    file = read_checked(pathlib.Path(path), RunsData, _REMEDY)
    data = file.data
    target = None if data["target"] is None else Target(data["target"]["measure"], data["target"]["value"])
    runs = tuple(_run(file, n) for n in range(len(data["runs"])))
    question = Question(**data["question"]) if "question" in data else None
    names = {run.exchange for run in runs}
    for key in ("better", "than"):
        if question is not None and getattr(question, key) not in names:
            said = f"{key} is {getattr(question, key)!r}, but must be an exchange of the runs"
            raise file.problem(("question", key), said)
    conditions = tuple(data.get("conditions", ()))
    return Runs(data["scenario"], data["problem"], tuple(data["hosts"]), target, runs, conditions, question)


def _run_data(run: Run) -> dict[str, Any]:
    history = run.history
    found: dict[str, Any] = {"exchange": run.exchange, "seed": run.seed, "end": history.end}
    for name in ("time_s", *_LOOKS, "staleness", *_WORKERS, "links", *_LINKS):
        found[name] = _plain(getattr(history, name))
    found["lost_updates"] = history.lost_updates
    if history.notes:
        found["notes"] = list(history.notes)
    if history.violated_s:
        found["violated_s"] = list(history.violated_s)
    if len(history.timeline):
        found["timeline"] = {str(name): history.timeline[name].tolist() for name in TIMELINE.names or ()}
    return found


def _plain(values: Any) -> Any:
    if values.dtype.kind != "f":
        return values.tolist()
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _run(file: CheckedFile[RunsData], n: int) -> Run:
    data: Any = file.data["runs"][n]
    where = ("runs", n)
    workers, arrays = len(file.data["hosts"]), dict[str, Any]()
    for names, count in ((_LOOKS, len(data["time_s"])), (_WORKERS, workers), (_LINKS, len(data["links"]))):
        for name, dtype in names.items():
            if len(data[name]) != count:
                said = f"{name} has {len(data[name])} elements, but must have {count}, as many as its neighbours"
                raise file.problem((*where, name), said)
            arrays[name] = np.array(data[name], dtype)
    for name in _RISING:
        falls = np.flatnonzero(np.diff(data[name]) < 0)
        if falls.size:
            at = int(falls[0]) + 1
            said = f"{name}[{at}] is {data[name][at]}, but must be at least {data[name][at - 1]}, the one before it"
            raise file.problem((*where, name, at), said)
    conditions, violated_s = file.data.get("conditions", []), tuple(data.get("violated_s", ()))
    if violated_s and len(violated_s) != len(conditions):
        said = f"violated_s has {len(violated_s)} elements, but must have {len(conditions)}, one for each condition"
        raise file.problem((*where, "violated_s"), said)
    timeline = np.zeros(len(data.get("timeline", {"worker": []})["worker"]), TIMELINE)
    for name, values in data.get("timeline", {}).items():
        if len(values) != len(timeline):
            said = f"{name} has {len(values)} elements, but must have {len(timeline)}, as many as its neighbours"
            raise file.problem((*where, "timeline", name), said)
        if name in ("worker", "other") and max(values, default=0) >= workers:
            said = f"{name} has the worker {max(values)}, but there are {workers}"
            raise file.problem((*where, "timeline", name), said)
        timeline[name] = values
    for at in np.flatnonzero(timeline["end_s"] < timeline["start_s"])[:1].tolist():
        said = f"end_s[{at}] is {timeline['end_s'][at]}, but must be at least {timeline['start_s'][at]}, as it began"
        raise file.problem((*where, "timeline", "end_s", at), said)
    return Run(data["exchange"], data["seed"], History(
        time_s=np.array(data["time_s"]), staleness=np.array(data["staleness"], np.int64),
        lost_updates=data["lost_updates"], links=np.array(data["links"], np.int64).reshape(-1, 2),
        params=np.zeros(0, np.float32), end=data["end"], timeline=timeline,
        notes=tuple(data.get("notes", ())), violated_s=violated_s, **arrays,
    ))  # fmt: skip
