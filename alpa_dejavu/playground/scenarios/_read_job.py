"""The job and the cluster of a scenario file."""

from __future__ import annotations

import contextlib
import inspect
import json
import pathlib
import typing
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from alpa_dejavu._util.format_fields import WrongDataError
from alpa_dejavu._util.json_text import Path
from alpa_dejavu._util.near_names import near
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.plans import read_plan
from alpa_dejavu.playground.data import MOVES, SPLITS, DataMove, Split
from alpa_dejavu.playground.job import Job, Problem
from alpa_dejavu.playground.problems import problem
from alpa_dejavu.playground.scenarios.runs_file import OptimizerPart, ScenarioFile, WorkersPart
from alpa_dejavu.playground.topology import TOPOLOGIES, Graph, Topology
from alpa_dejavu.problem import Cluster, Plan

if TYPE_CHECKING:
    import optax


def job_and_cluster(file: ScenarioFile, folder: pathlib.Path) -> tuple[Job, Cluster]:
    """Returns what a scenario trains, and on which cluster; files that it names lie in the folder."""
    if file.problem is None and file.num_bytes is None:
        raise WrongDataError((), "there is neither a problem nor num_bytes, but messages need a size; give one")
    if file.problem is None and file.compute_s == "predicted":
        raise WrongDataError(("compute_s",), 'compute_s is "predicted", but must be seconds where no problem is')
    with at("problem"):
        trained = None if file.problem is None else problem(file.problem)
    part = file.cluster
    own_file = folder / part.name
    with at("cluster", "name"):
        machine = str(own_file) if own_file.is_file() else part.name
        cluster = named_cluster(machine, part.hosts, part.devices_per_host)
    return _job(file, trained, cluster, folder), cluster


def _job(file: ScenarioFile, trained: Problem | None, cluster: Cluster, folder: pathlib.Path) -> Job:
    plain = {name: getattr(file, name) for name in ("batch", "spread", "num_bytes", "sample_bytes", "drop")}
    more: dict[str, Any] = {name: value for name, value in plain.items() if value is not None}
    more |= _data(file, trained)
    if trained is not None:
        more["optimizer"] = _optimizer(file.optimizer or OptimizerPart("sgd", 0.1))
    workers, plans = file.workers or WorkersPart(), _plans(file, folder)
    if workers.hosts:
        more["hosts"] = workers.hosts
    if plans:
        with at("workers"):
            pipelines = Job.of_plan(None, plans, cluster, workers.copies or 1, num_bytes=0.0)
        more["hosts"] = pipelines.hosts
    for key, field in (("workers", "hosts"), ("batch", "batch"), ("drop", "drop")):
        with at(*((key, field) if key == "workers" else (key,))):
            fields = {name: more[name] for name in {"hosts", field} if name in more}
            Job(trained, 0.0, num_bytes=0.0, **fields).worker_hosts(cluster)
    with at("compute_s"):
        if file.compute_s == "predicted":
            assert trained is not None, "it is checked"
            return Job.predicted(trained, cluster, **more)
        job = Job(trained, pipelines.compute_s if plans else file.compute_s, **more)
        job.worker_hosts(cluster)
        return job


def _plans(file: ScenarioFile, folder: pathlib.Path) -> tuple[Plan, ...]:
    """The plans of workers that are whole pipelines; none where workers aren't."""
    workers = file.workers or WorkersPart()
    if file.workers is not None and bool(workers.hosts) == bool(workers.plans):
        raise WrongDataError(("workers",), "workers has both or neither of hosts and plans, but must have one of them")
    if workers.copies is not None and not workers.plans:
        raise WrongDataError(("workers", "copies"), "copies is there without plans; name the plans, or leave it out")
    if bool(workers.plans) != (file.compute_s == "planned"):
        raise WrongDataError(("compute_s",), f"compute_s is {file.compute_s!r}, but must be 'planned' where workers "
                             "are the pipelines of plans, and only there; set workers: {plans: [...]}")  # fmt: skip
    plans = []
    for n, name in enumerate(workers.plans):
        with at("workers", "plans", n):
            plans.append(read_plan(folder / name))
    return tuple(plans)


def _data(file: ScenarioFile, trained: Problem | None) -> dict[str, Any]:
    """The job's split and its policy of moving samples."""
    for key in ("data", "moves", "sample_bytes"):
        if getattr(file, key) is not None and trained is None:
            raise WrongDataError((key,), f"{key} is there, but time alone is simulated: there are no samples, losses "
                                 "or gradients; name a problem, or leave it out")  # fmt: skip
    settings: dict[str, Any] = {}
    if file.data is not None:
        settings["shards"] = object_named("split", file.data, SPLITS, ("data",))
    if file.moves is not None:
        if file.data is None:
            raise WrongDataError(("moves",), "moves is there without data: each worker draws from all samples; add a "
                                 "split, such as data: independent")  # fmt: skip
        settings["moves"] = object_named("policy of moving samples", file.moves, MOVES, ("moves",))
    return settings


def _optimizer(part: OptimizerPart) -> optax.GradientTransformation:
    import optax

    if part.name == "sgd":
        return optax.sgd(part.rate, part.momentum)
    if part.momentum is not None:
        raise WrongDataError(("optimizer", "momentum"), "momentum is one of sgd, not of adam; leave it out")
    return optax.adam(part.rate)


@contextlib.contextmanager
def at(*where: str | int) -> Iterator[None]:
    """Says of an error where in the file its reason is."""
    try:
        yield
    except WrongDataError:
        raise
    except ValueError as error:
        raise WrongDataError(where, str(error)) from None


T = TypeVar("T")
_WORDS: Mapping[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"), float: ("a number", "numbers"), str: ("text", "texts"),
    bool: ("true or false", "true or false"), type(None): ("null", "null"),
}  # fmt: skip
"""The words for one value of a type, and for several."""
TOPOLOGY_WORDS: Mapping[str, type[Topology]] = {**TOPOLOGIES, "graph": Graph}
"""For each word of a scenario the topology; `topology` has those alone that need no settings."""
_REGISTRIES: Mapping[type, Mapping[str, type]] = {Topology: TOPOLOGY_WORDS, Split: SPLITS, DataMove: MOVES}
"""Interfaces whose objects may be settings themselves, by name."""


def name_and_settings(entry: str | Mapping[str, Mapping[str, Any] | None]) -> tuple[str, Mapping[str, Any]]:
    """Returns the name of an entry of a file, and its settings.

    >>> name_and_settings("ring"), name_and_settings({"random": {"peers": 3}})
    (('ring', {}), ('random', {'peers': 3}))
    """
    if isinstance(entry, str):
        return entry, {}
    ((name, settings),) = entry.items()
    return name, settings or {}


def object_named(what: str, entry: Any, kinds: Mapping[str, type[T]], where: Path) -> T:
    """Returns the object of an entry's name with its settings; errors have the noun `what` and the entry's place."""
    name, settings = name_and_settings(entry)
    if name not in kinds:
        raise WrongDataError(where, f"there is no {what} {name!r}{near(name, kinds)} (known are {', '.join(kinds)})")
    kind, inside = kinds[name], (*where, name)
    known_settings = inspect.signature(kind).parameters
    for setting in settings:
        if setting not in known_settings:
            has = f"known are {', '.join(known_settings)}" if known_settings else "it has none"
            text = f"{setting!r} is no setting of {name!r}{near(setting, known_settings)} ({has})"
            raise WrongDataError((*inside, setting), text)
    hints = typing.get_type_hints(kind)
    values = {key: _value(value, hints[key], (*inside, key)) for key, value in settings.items()}
    for setting, parameter in known_settings.items():
        if parameter.default is inspect.Parameter.empty and setting not in values:
            raise WrongDataError(where, f"{name!r} lacks the setting {setting!r}")
    try:
        return kind(**values)
    except ValueError as error:
        raise WrongDataError(where, str(error)) from None


def _value(value: Any, hint: Any, where: Path) -> Any:
    """Returns a setting's value as its field has it: a list becomes a tuple, a name of an interface's an object."""
    for interface in typing.get_args(hint) or (hint,):
        if interface in _REGISTRIES and isinstance(value, (str, Mapping)):
            if isinstance(value, Mapping) and len(value) != 1:
                raise WrongDataError(where, f"{where[-1]} is {json.dumps(value)}, but must be one name with settings")
            return object_named(str(where[-1]), value, _REGISTRIES[interface], where)
    try:
        adapter = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
        return adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError:
        raise WrongDataError(where, f"{where[-1]} is {json.dumps(value)}, but must be {_words(hint)}") from None


def _words(hint: Any, many: bool = False) -> str:
    """Returns in words what a value of a type is, or what several are.

    >>> _words(tuple[int, int]), _words(float | None)
    ('a list of 2 whole numbers', 'a number, or null')
    """
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        count = "" if Ellipsis in parts else f"{len(parts)} "
        return f"{'lists' if many else 'a list'} of {count}{_words(parts[0], many=True)}"
    if parts:
        return ", or ".join(_words(part, many) for part in parts)
    single, several = _WORDS.get(hint, (f"a {hint.__name__.lower()}", f"{hint.__name__.lower()}s"))
    return several if many else single
