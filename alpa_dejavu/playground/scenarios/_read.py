"""Reading a scenario file: names become objects, and all that can't be is said with its line before anything runs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from alpa_dejavu._util.dataclass_format import object_of
from alpa_dejavu._util.format_fields import WrongDataError
from alpa_dejavu._util.json_file import CheckedFile
from alpa_dejavu._util.json_text import Path
from alpa_dejavu._util.yaml_file import read_checked_yaml
from alpa_dejavu.playground._simulate import simulate
from alpa_dejavu.playground._world import Exchange, Program, Worker
from alpa_dejavu.playground.condition import CONDITIONS, Condition
from alpa_dejavu.playground.exchanges import EXCHANGES, AllReduce, LocalSteps
from alpa_dejavu.playground.fault import FAULTS, Crash, DrawnCrashes, Fault, Join
from alpa_dejavu.playground.job import Job, Problem, Until
from alpa_dejavu.playground.scenarios._comparison import AXES
from alpa_dejavu.playground.scenarios._read_job import at, job_and_cluster, name_and_settings, object_named
from alpa_dejavu.playground.scenarios._scenario import Question, RunTarget, Scenario
from alpa_dejavu.playground.scenarios.runs_file import ScenarioData, ScenarioFile, TargetPart
from alpa_dejavu.problem import Cluster

T = TypeVar("T")
_REMEDY = "docs/guides/playground-scenarios.md has every key, and `alpa-dejavu playground list` has all names"
_BEGINNING = Until(seconds=1e-300)


def read_scenario(path: str | os.PathLike[str]) -> Scenario:
    """Reads a scenario from a YAML file. A cluster's file may lie beside it.

    Each fault and each exchange is tried at second 0, so that one that can't be isn't found after an hour.

    Raises:
        ValueError: there is no such file, or it is wrong: an unknown key, a rate below zero, a worker that there isn't;
            says what, in which line, and what would be right.
        RuntimeError: it needs a package that isn't installed; says how to install it.
    """
    file: CheckedFile[Any] = read_checked_yaml(pathlib.Path(path), ScenarioData, _REMEDY)
    try:
        return dataclasses.replace(_with_variants(file), text=file.text)
    except WrongDataError as error:
        raise file.problem(error.where, str(error)) from None


def _with_variants(file: CheckedFile[Any]) -> Scenario:
    """The scenario; where it has variants, each is one with some keys in place of the scenario's own."""
    data, folder, name = file.data, file.path.parent, file.path.stem
    own = object_of(ScenarioFile, data)
    variants: list[Scenario] = []
    for variant, keys in data.get("variants", {}).items():
        try:
            variants.append(_scenario(object_of(ScenarioFile, {**data, **keys}), folder, variant))
        except WrongDataError as error:
            inside = ("variants", variant) if error.where[:1] and error.where[0] in keys else ()
            raise WrongDataError((*inside, *error.where), str(error)) from None
    scenario = variants[0] if variants else _scenario(own, folder, name)
    scenario = dataclasses.replace(scenario, name=name, variants=tuple(variants), question=own.question)
    if own.question is not None:
        _check_question(scenario, own.question)
    return scenario


def _check_question(scenario: Scenario, question: Question) -> None:
    """Raises WrongDataError where a question is of runs that there aren't, or of a figure that they haven't."""
    trained = scenario.job.problem
    for key in ("better", "than"):
        if getattr(question, key) not in scenario.names:
            raise WrongDataError(("question", key), f"{key} is {getattr(question, key)!r}, but must be one of "
                                 f"{', '.join(map(repr, scenario.names))}; take it from these")  # fmt: skip
    if question.better == question.than:
        raise WrongDataError(("question", "than"), f"better and than are both {question.than!r}; ask of two")
    if question.by in AXES and scenario.target is None:
        raise WrongDataError(("question", "by"), f"by is {question.by!r}, the {question.by} to a target, but there is "
                             "none; add a target, or ask by loss")  # fmt: skip
    if question.by not in AXES and (trained is None or (question.by == "accuracy" and trained.accuracy is None)):
        raise WrongDataError(("question", "by"), f"by is {question.by!r}, which these runs haven't; ask by seconds")


def _scenario(file: ScenarioFile, folder: pathlib.Path, name: str) -> Scenario:
    job, cluster = job_and_cluster(file, folder)
    target = None if file.target is None else _target(file.target, job.problem)
    for n, seed in enumerate(file.seeds):
        if seed in file.seeds[:n]:
            raise WrongDataError(("seeds", n), f"the seed {seed} is there twice; it must be there once")
    with at("data"):
        for seed in file.seeds:  # one may leave a worker without samples
            job.split(cluster, seed)
    with at("until"):
        until = Until(**file.until)
    faults = tuple(object_named("fault", entry, FAULTS, ("faults", n)) for n, entry in enumerate(file.faults))
    exchanges = _by_name("exchange", file.exchanges, EXCHANGES)
    conditions = _by_name("condition", file.conditions, CONDITIONS)
    for n, fault in enumerate(faults):
        _try(job, cluster, _Idle(), [fault], until, ("faults", n))
    for n, condition in enumerate(conditions.values()):
        _try(job, cluster, _Idle(), [], until, ("conditions", n), [condition])
    for n, exchange in enumerate(exchanges.values()):
        _check_survives(exchange, faults, ("exchanges", n))
        _try(job, cluster, exchange, [], _BEGINNING, ("exchanges", n))
    return Scenario(name, job, cluster, exchanges, faults, until, file.seeds, file.looks, target, conditions)


def _by_name(what: str, entries: Sequence[Any], kinds: Mapping[str, type[T]]) -> dict[str, T]:
    """Returns the objects of entries of a file by their names for people."""
    by_name: dict[str, T] = {}
    for n, entry in enumerate(entries):
        object_, name = object_named(what, entry, kinds, (f"{what}s", n)), _name_for_people(entry)
        if object_ in by_name.values():
            raise WrongDataError((f"{what}s", n), f"the {what} {name!r} is there twice; it must be there once")
        by_name[f"{name} {n}" if name in by_name else name] = object_
    return by_name


def _target(part: TargetPart, trained: Problem | None) -> RunTarget:
    asked = {name: value for name, value in vars(part).items() if value is not None}
    if len(asked) != 1:
        raise WrongDataError(("target",), "target has both or neither of loss and accuracy, but must have one of them")
    ((measure, value),) = asked.items()
    if trained is None or (measure == "accuracy" and trained.accuracy is None):
        whose = "time alone is simulated" if trained is None else f"{trained.name} has no classes"
        raise WrongDataError(("target", measure), f"there is no {measure} to reach: {whose}; leave it out")
    return RunTarget(measure, value)


def _name_for_people(entry: Any) -> str:
    """An exchange's name for people."""
    name, settings = name_and_settings(entry)
    texts = [
        f"{len(value)} {key}" if isinstance(value, list)
        else f"{key} {_name_for_people(value) if isinstance(value, dict) else value}"
        for key, value in settings.items() if value is not None
    ]  # fmt: skip
    return f"{name} ({', '.join(texts)})" if texts else name


def _check_survives(exchange: Exchange, faults: Sequence[Fault], where: Path) -> None:
    """Raises WrongDataError where faults take workers away that an exchange can't do without."""
    fewer = any(isinstance(fault, (Crash, DrawnCrashes, Join)) for fault in faults)
    if fewer and isinstance(exchange, (AllReduce, LocalSteps)) and exchange.algorithm == "hierarchical":
        raise WrongDataError(where, "algorithm is hierarchical, but must be ring or tree where faults take workers "
                             "away: it needs as many on each host; choose one, or leave those faults out")  # fmt: skip


class _BegunError(Exception):
    """A run has begun, and need not go on."""


class _Idle(Exchange):
    """Workers that end a run as soon as it has begun."""

    def run(self, worker: Worker) -> Program:
        raise _BegunError


def _try(job: Job, cluster: Cluster, exchange: Exchange, faults: list[Fault], until: Until, where: Path,
         conditions: Sequence[Condition] = ()) -> None:  # fmt: skip
    """Begins a run, and ends it before its first gradient: by then all that can't be has been said."""
    try:
        with contextlib.suppress(_BegunError):
            simulate(job, cluster, exchange, faults=faults, conditions=conditions, until=until, looks=0)
    except ValueError as error:
        raise WrongDataError(where, str(error)) from None
