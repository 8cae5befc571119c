"""A scenario, and running it: a history for each exchange and seed."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Annotated, final

from alpa_dejavu._util.dataclass_format import Elsewhere, Key, Needed, Rare, chosen
from alpa_dejavu._util.format_fields import Text, Words, listed, stated
from alpa_dejavu._util.json_file import write_whole
from alpa_dejavu.playground._simulate import simulate
from alpa_dejavu.playground._world import Exchange
from alpa_dejavu.playground.condition import Condition
from alpa_dejavu.playground.fault import Fault
from alpa_dejavu.playground.history import History
from alpa_dejavu.playground.job import Job, Until
from alpa_dejavu.problem import Cluster

INTERVALS = 10_000
"""So many intervals of workers' time has the timeline of a run at most."""


@final
@dataclasses.dataclass(frozen=True)
class RunTarget:
    """A measure and the value that runs are timed to: "loss", held out, at most, or "accuracy", at least."""

    measure: Annotated[str, chosen(("loss", "accuracy")), stated('"loss" or "accuracy"')]
    value: Annotated[float, stated("a number")]

    def look(self, history: History) -> int | None:
        """Returns the index of the first moment of a history at which the target is reached; None if none is."""
        reached = history.loss <= self.value if self.measure == "loss" else history.accuracy >= self.value
        return int(reached.argmax()) if reached.any() else None


@final
@dataclasses.dataclass(frozen=True)
class Question:
    """A question that the runs of a scenario answer: whether one exchange, or variant, is better than another."""

    text: Annotated[Text, stated("a question, such as Does gossip reach the target sooner?")]
    better: Annotated[Text, stated("the name of an exchange or variant, as the tables have it")]
    than: Annotated[Text, stated("the name of another one, as the tables have it")]
    by: Annotated[
        str,
        chosen(("seconds", "steps", "bytes", "loss", "accuracy")),
        stated('"seconds", "steps" or "bytes" to the target, or the "loss" or "accuracy" at the end'),
    ]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Scenario:
    """A job on a cluster, and the exchanges by which it is to be trained, each with each seed.

    Attributes:
        exchanges: by their names for people, which have the settings that aren't the usual ones.
        looks: at how many moments the model is looked at, besides the first and the last.
        conditions: what runs are checked against, by their names for people.
        variants: scenarios that differ from this one in some keys, and are run in its place; none: it is run itself.
        text: what its file says, by which runs that a folder keeps are told from another scenario's.
    """

    name: str
    job: Job
    cluster: Cluster
    exchanges: Mapping[str, Exchange]
    faults: tuple[Fault, ...]
    until: Until
    seeds: tuple[int, ...]
    looks: int
    target: RunTarget | None
    conditions: Mapping[str, Condition] = dataclasses.field(default_factory=dict)
    variants: tuple[Scenario, ...] = ()
    question: Question | None = None
    text: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of its exchanges, with their variant's name before them where there are variants."""
        if not self.variants:
            return tuple(self.exchanges)
        return tuple(_variant_name(variant, name) for variant in self.variants for name in variant.exchanges)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ScenarioRun:
    """A run of a scenario: its exchange's name for people, its seed, and what came of it."""

    exchange: str
    seed: int
    history: History


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Runs:
    """All runs of a scenario of the playground.

    Attributes:
        problem: the name of the problem; None: time alone was simulated.
        conditions: the names of what runs were checked against, in the order of `History.violated_s`.
        runs: by exchange, and then by seed. The first seed of each exchange has a timeline.
    """

    name: Annotated[Words, Key("scenario")]
    problem: Annotated[Text | None, stated("the name of a problem, or null")]
    hosts: Annotated[tuple[Text, ...], listed("a list of the host of each worker", min_length=1)]
    conditions: Rare[Annotated[tuple[Text, ...], listed("a list of the names of conditions")]] = ()
    target: Needed[
        Annotated[RunTarget | None, stated('an object such as {"measure": "loss", "value": 0.5}, or null')]
    ] = None
    question: Rare[Annotated[Question | None, stated("an object with text, better, than and by")]] = None
    runs: Elsewhere[tuple[ScenarioRun, ...]] = ()


def run_scenario(scenario: Scenario, progress: bool = False) -> Runs:
    """Runs a scenario with each exchange and seed; the same scenario gives the same histories to the bit. Progress bars
    are shown for what takes more than two seconds.
    """
    *_, whole = growing_runs(scenario, progress)
    return whole


def growing_runs(scenario: Scenario, progress: bool = False, folder: pathlib.Path | None = None) -> Iterator[Runs]:
    """Yields the runs of a scenario that are finished, each time that one more is; the last are all (`run_scenario`).

    Where a run fails or is interrupted, the caller still has those before it. A folder, which is made where it isn't
    there, keeps what is computed: called again, it goes on from there.

    Raises:
        ValueError: the folder keeps the runs of another scenario, or can't be made.
    """
    if folder is not None:
        _check_kept(folder, scenario)
    problem, hosts = scenario.job.problem, scenario.cluster.hosts
    names = tuple(hosts[n].name for n in scenario.job.worker_hosts(scenario.cluster))
    runs = Runs(scenario.name, None if problem is None else problem.name, names, tuple(scenario.conditions),
                scenario.target, scenario.question)  # fmt: skip
    for variant in scenario.variants or (scenario,):
        for name, exchange in variant.exchanges.items():
            shown = _variant_name(variant, name) if scenario.variants else name
            for n, seed in enumerate(variant.seeds):
                kept = None if folder is None else folder / f"{len(runs.runs):04d}"
                if kept is not None:
                    kept.mkdir(exist_ok=True)
                history = simulate(
                    variant.job, variant.cluster, exchange, faults=variant.faults,
                    conditions=tuple(variant.conditions.values()), until=variant.until, seed=seed, looks=variant.looks,
                    progress=progress, intervals=INTERVALS if n == 0 else 0, folder=kept,
                )  # fmt: skip
                runs = dataclasses.replace(runs, runs=(*runs.runs, ScenarioRun(shown, seed, history)))
                yield runs


def _check_kept(folder: pathlib.Path, scenario: Scenario) -> None:
    """Makes a folder for a scenario's runs, or raises ValueError where it keeps others."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ValueError(f"folder is {str(folder)!r}, but can't be made: {error.strerror}; give one in a folder that "
                         "is there") from None  # fmt: skip
    path = folder / "scenario.yaml"
    if not path.exists():
        if any(folder.iterdir()):
            raise ValueError(f"folder is {str(folder)!r}, but must be empty or keep runs; give another one")
        write_whole(path, scenario.text)
    elif path.read_text(encoding="utf-8") != scenario.text:
        raise ValueError(f"folder is {str(folder)!r}, but must keep runs of this scenario: {path} is another one; give "
                         "another folder")  # fmt: skip


def _variant_name(variant: Scenario, exchange: str) -> str:
    """Returns the name of an exchange of a variant: the variant's alone where it has one exchange."""
    return variant.name if len(variant.exchanges) == 1 else f"{variant.name}: {exchange}"
