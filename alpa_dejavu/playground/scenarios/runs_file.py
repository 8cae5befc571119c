"""Files of a scenario's runs, version 1: JSON that is written whole, and checked by a declared type when it is read."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util.dataclass_format import data_of, object_of, typed_dict_of
from alpa_dejavu._util.format_fields import WHOLE, Index, Seconds, Text, listed, stated, whole
from alpa_dejavu._util.json_file import CheckedFile, read_checked, write_whole
from alpa_dejavu.playground.history import TIMELINE, History
from alpa_dejavu.playground.scenarios._scenario import Runs, ScenarioRun

__all__ = ["RunsData", "read_runs", "runs_text", "write_runs"]

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
_RUN = Annotated[
    typed_dict_of(History, {"exchange": Text, "seed": Index}, timeline=NotRequired[_TIMELINE]),  # type: ignore[valid-type]
    stated("a run"),
]
RunsData: Any = typed_dict_of(
    Runs,
    {"version": Annotated[Literal[1], stated("1, the version of runs that this release reads"), WHOLE]},
    runs=Annotated[list[_RUN], listed("a list of at least one run", min_length=1)],
)
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
