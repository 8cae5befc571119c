"""A scenario, and running it: a history for each exchange and seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import final

from alpa_dejavu.playground._exchange import Exchange
from alpa_dejavu.playground._simulate import simulate
from alpa_dejavu.playground.condition import Condition
from alpa_dejavu.playground.fault import Fault
from alpa_dejavu.playground.history import History
from alpa_dejavu.playground.job import Job, Until
from alpa_dejavu.problem import Cluster

__all__ = ["INTERVALS", "Run", "Runs", "Scenario", "Target", "growing_runs", "no_runs", "run_scenario"]

INTERVALS = 10_000
"""So many intervals of workers' time has the timeline of a run at most."""


@final
@dataclasses.dataclass(frozen=True)
class Target:
    """A measure and the value that runs are timed to.

    Attributes:
        measure: "loss", held out, which must be at most the value, or "accuracy", which must be at least it.
        value: the value.
    """

    measure: str
    value: float

    def look(self, history: History) -> int | None:
        """Returns the index of the first moment of a history at which the target is reached; None if none is."""
        found = history.loss <= self.value if self.measure == "loss" else history.accuracy >= self.value
        return int(found.argmax()) if found.any() else None


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Scenario:
    """A job on a cluster, and the exchanges by which it is to be trained, each with each seed.

    Attributes:
        name: for people.
        job: what is trained, and how long a gradient takes.
        cluster: the links that messages go over.
        exchanges: by their names for people, which have the settings that aren't the usual ones.
        faults: workers and links that change meanwhile.
        until: when each run ends.
        seeds: the seeds of the runs.
        looks: at how many moments the model is looked at, besides the first and the last.
        target: what runs are timed to; None: nothing.
        conditions: what runs are checked against, by their names for people.
    """

    name: str
    job: Job
    cluster: Cluster
    exchanges: Mapping[str, Exchange]
    faults: tuple[Fault, ...]
    until: Until
    seeds: tuple[int, ...]
    looks: int
    target: Target | None
    conditions: Mapping[str, Condition] = dataclasses.field(default_factory=dict)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """One run of a scenario: its exchange's name for people, its seed, and what came of it."""

    exchange: str
    seed: int
    history: History


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Runs:
    """All runs of a scenario.

    Attributes:
        name: the scenario's name.
        problem: the name of the problem; None: time alone was simulated.
        hosts: for each worker the name of its host.
        target: what runs are timed to; None: nothing.
        runs: by exchange, and then by seed. The first seed of each exchange has a timeline.
        conditions: the names of what runs were checked against, in the order of `History.violated_s`.
    """

    name: str
    problem: str | None
    hosts: tuple[str, ...]
    target: Target | None
    runs: tuple[Run, ...]
    conditions: tuple[str, ...] = ()


def no_runs(scenario: Scenario) -> Runs:
    """Returns the runs of a scenario before the first one."""
    problem, hosts = scenario.job.problem, scenario.cluster.hosts
    names = tuple(hosts[n].name for n in scenario.job.worker_hosts(scenario.cluster))
    conditions = tuple(scenario.conditions)
    return Runs(scenario.name, None if problem is None else problem.name, names, scenario.target, (), conditions)


def run_scenario(scenario: Scenario, progress: bool = False) -> Runs:
    """Runs a scenario with each exchange and seed; the same scenario gives the same histories to the bit.

    Args:
        scenario: the scenario.
        progress: whether bars are shown for what takes more than two seconds.
    """
    *_, whole = growing_runs(scenario, progress)
    return whole


def growing_runs(scenario: Scenario, progress: bool = False) -> Iterator[Runs]:
    """Yields the runs of a scenario that are finished, each time that one more is; the last are all (`run_scenario`).

    Where a run fails or is interrupted, the caller still has those before it.
    """
    runs = no_runs(scenario)
    for name, exchange in scenario.exchanges.items():
        for n, seed in enumerate(scenario.seeds):
            history = simulate(
                scenario.job, scenario.cluster, exchange, faults=scenario.faults,
                conditions=tuple(scenario.conditions.values()), until=scenario.until, seed=seed, looks=scenario.looks,
                progress=progress, intervals=INTERVALS if n == 0 else 0,
            )  # fmt: skip
            runs = dataclasses.replace(runs, runs=(*runs.runs, Run(name, seed, history)))
            yield runs
