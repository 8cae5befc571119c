"""Choices in rows, the options that they make, and short trainings by one of them, with the seconds that they take."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

import numpy as np
from scipy.special import softmax

from alpa_dejavu.playground._arrays import Vector
from alpa_dejavu.playground._data import check_above_zero
from alpa_dejavu.playground._simulate import simulate
from alpa_dejavu.playground._world import Exchange
from alpa_dejavu.playground.exchanges import exchange as resolved
from alpa_dejavu.playground.job import Job, Until
from alpa_dejavu.problem import Cluster, checks

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Shares: TypeAlias = Float[np.ndarray, " options"]


@final
@dataclasses.dataclass(frozen=True)
class Mixing:
    """Settings of how options are mixed, by turns, and of how their shares move.

    Attributes:
        rate: how far the matrix moves in a step, where an option is worth twice the mean.
        averaged: the part by which the average loss of an option, which begins at that of all, moves in a step.
        drop: a choice whose share is below so much of its row's largest one is out.
        gradients: how many gradients each worker computes in an option's segment, for the slowest option.
        most_steps: after so many the largest share of each row is left.
        known_first: whether shares follow the planned seconds, and choices are dropped by these, before the first step;
            not where a weight of seconds is given. Experimental.
    """

    rate: float = 6.0
    averaged: float = 0.1
    drop: float = 0.3
    gradients: int = 1
    most_steps: int = 12
    known_first: bool = False

    def __post_init__(self) -> None:
        checks.count("mixing", "gradients", self.gradients)
        checks.count("mixing", "most_steps", self.most_steps)
        check_above_zero("mixing", "averaged", self.averaged, "give a share")
        check_above_zero("mixing", "drop", self.drop, "give a share")
        checks.positive("mixing", "rate", self.rate)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Matrix:
    """Rows of numbers under a softmax, one for each kind; minus infinity is out. `places` are options' choices."""

    rows: tuple[Float[np.ndarray, " choices"], ...]
    places: Int[np.ndarray, "options rows"]

    @classmethod
    def of(cls, places: Sequence[Sequence[int]]) -> Matrix:
        """Returns one of equal shares."""
        of_options = np.array(places, np.int64)
        return cls(tuple(np.zeros(count) for count in of_options.max(axis=0) + 1), of_options)

    def shares(self) -> Shares:
        """Returns each option's share: the product of those of its choices."""
        every = [softmax(row)[self.places[:, n]] for n, row in enumerate(self.rows)]
        return np.asarray(np.prod(every, axis=0))

    def moved(self, gradient: Shares, rate: float) -> Matrix:
        """Returns it after a step of mirror descent, by which shares are multiplied by exp(-rate * gradient); that is
        by each option's share, and a choice takes the mean of its options by their shares.
        """
        shares, rows = self.shares(), []
        for n, row in enumerate(self.rows):
            parts = np.bincount(self.places[:, n], shares, len(row))
            sums = np.bincount(self.places[:, n], shares * gradient, len(row))
            rows.append(row - rate * np.divide(sums, parts, out=np.zeros(len(row)), where=parts > 0))
        return Matrix(tuple(rows), self.places)

    def hardened(self, drop: float) -> Matrix:
        """Returns it without the choices whose share is below so much of their row's largest one; 1 leaves that."""
        rows = []
        for row in self.rows:
            kept = np.arange(len(row)) == row.argmax() if drop == 1 else row >= row.max() + np.log(drop)
            rows.append(np.where(kept, row, -np.inf))
        return Matrix(tuple(rows), self.places)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """One entry of a row: the exchange, or its name, where no other row has that; and changes, attributes of the job
    with other values, such as its batch with the seconds of that.
    """

    name: str
    exchange: str | Exchange | None = None
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Option:
    """A whole setting: one choice of each row, by its place, and the job with what the choices change."""

    name: str
    places: tuple[int, ...]
    job: Job
    exchange: Exchange


def options(job: Job, rows: Sequence[Sequence[Choice]]) -> tuple[Option, ...]:
    """Returns every combination of one choice of each row, the last row's running fastest; one row names exchanges.

    Raises:
        ValueError: a row is empty, not exactly one row names exchanges, or a choice changes the problem or optimizer.

    >>> rows = [[Choice("ring", "gossip"), Choice("sum", "all-reduce")], [Choice("16", changes={"batch": 16})]]
    >>> [option.name for option in options(Job(None, 1.0, num_bytes=8), rows)]
    ['ring, 16', 'sum, 16']
    """
    if not rows or not all(rows):
        raise ValueError(f"rows is {rows!r}, but must be rows of at least one choice each; leave out what has none")
    named = [{choice.exchange is not None for choice in row} for row in rows]
    if named.count({True}) != 1 or {True, False} in named:
        raise ValueError("rows: choices name exchanges in another way than all those of exactly one row; give each "
                         "choice of one row an exchange")  # fmt: skip
    kept = {"problem", "optimizer", "hosts", "own_starts"}
    for choice in itertools.chain(*rows):
        if wrong := kept.intersection(choice.changes):
            raise ValueError(f"choice {choice.name!r} changes {sorted(wrong)}, but must leave {sorted(kept)}; change "
                             "them in the job")  # fmt: skip
    combined = []
    for places in itertools.product(*(range(len(row)) for row in rows)):
        chosen = [row[place] for row, place in zip(rows, places, strict=True)]
        (way,) = (choice.exchange for choice in chosen if choice.exchange is not None)
        changed = {name: value for choice in chosen for name, value in choice.changes.items()}
        name = ", ".join(choice.name for choice in chosen)
        combined.append(Option(name, places, dataclasses.replace(job, **changed), resolved(way)))
    return tuple(combined)


def planned_seconds(option: Option, cluster: Cluster, num_bytes: float) -> float:
    """Returns the predicted seconds between two gradients that an option applies, of all workers together: by a
    simulation of time alone, of seconds as long as each worker takes for 64 gradients of so many bytes.
    """
    job = dataclasses.replace(option.job, problem=None, num_bytes=num_bytes)
    whole = simulate(job, cluster, option.exchange, until=Until(steps=64), looks=0)
    # Within fixed seconds, as those who are done first wait at the end of fixed steps.
    run = simulate(job, cluster, option.exchange, until=Until(seconds=whole.end_s), looks=0)
    return whole.end_s / int(run.steps[-1])


class Segment(NamedTuple):
    params: Vector
    gradients: int
    seconds: float
    loss: float


@final
class Segments:
    """Short trainings of options, on one cluster; `planned_s` has each option's predicted seconds of a gradient of all
    workers, `meeting_s` those of an all-reduce of the parameters.
    """

    def __init__(self, job: Job, cluster: Cluster, every: Sequence[Option], size: int, seed: int) -> None:
        self._cluster, self._every, self._seed = cluster, every, seed
        num_bytes = 4.0 * size if job.num_bytes is None else float(job.num_bytes)
        self.planned_s = np.array([planned_seconds(option, cluster, num_bytes) for option in every])
        alone = dataclasses.replace(job, problem=None, num_bytes=num_bytes, compute_s=0.0)
        self.meeting_s = simulate(alone, cluster, "all-reduce", until=Until(steps=1)).end_s
        self.workers = len(job.worker_hosts(cluster))

    def run(self, number: int, at: Vector, seconds: float, step: int) -> Segment:
        """Trains by an option from parameters on for some virtual seconds, at whose end what is under way is lost. If
        workers then have unlike parameters, it has the seconds of an all-reduce in addition, which makes their mean.
        For each step of the mix samples and seconds are drawn anew.
        """
        option = self._every[number]
        drawn = int(np.random.default_rng([self._seed, 6, step, number]).integers(2**31))
        run = simulate(option.job, self._cluster, option.exchange, until=Until(seconds=seconds), seed=drawn, start=at,
                       looks=0)  # fmt: skip
        apart = self.meeting_s if run.consensus[-1] > 0 else 0.0
        return Segment(run.params, int(run.steps[-1]), run.end_s + apart, float(run.loss[-1]))
