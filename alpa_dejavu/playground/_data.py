"""The interfaces of where the data go: splits over workers, and policies that move samples while a run goes."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar, Literal, TypeAlias, final

import numpy as np

from alpa_dejavu.playground._arrays import Counts, Figures, Rows, Values
from alpa_dejavu.problem import checks

Uses: TypeAlias = Literal["exactly once", "at most once", "at will"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class SplitTask:
    """Samples that are to be spread over workers, with each one's host and seconds of a gradient."""

    inputs: Values
    targets: Values
    hosts: tuple[int, ...]
    compute_s: tuple[float, ...]
    seed: int

    @property
    def size(self) -> int:
        """Returns the number of workers."""
        return len(self.hosts)

    @property
    def samples(self) -> int:
        """Returns the number of samples."""
        return len(self.targets)

    def generator(self) -> np.random.Generator:
        """Returns the random numbers of the split, from their beginning."""
        return np.random.default_rng([self.seed, 6])


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Shards:
    """The samples of each worker, by their indices."""

    rows: tuple[Rows, ...]


class Split(abc.ABC):
    """A way to spread samples over workers; `alpa_dejavu.playground.testing.check_split` says if one is sound.

    Attributes:
        uses: how often a sample is there among all workers: "exactly once", "at most once", or "at will".
    """

    uses: ClassVar[Uses] = "exactly once"

    @abc.abstractmethod
    def split(self, task: SplitTask) -> Shards:
        """Returns the samples of each worker; each has at least one.

        Raises:
            ValueError: a worker would be left without samples, or the targets are none that the split can do with.
        """


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Handed:
    """Samples that a worker hands on, each as often as it does, and who gets each of them."""

    rows: Rows
    targets: Counts


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Epoch:
    """The end of a worker's epoch, as a policy sees it.

    An epoch is as many gradients as go once through a worker's samples on the mean of all workers at the beginning.

    Attributes:
        worker, number: the number of the worker, and which of its epochs ends, from 1.
        ages: how many epochs of the worker ended since each of these came; very many for the first ones.
        mean_samples: samples of a worker at the beginning, on the mean.
        losses: returns the loss of each of the worker's samples at its parameters; the worker's next gradient is later
            by a third of the seconds of their gradients.
    """

    worker: int
    number: int
    rows: Rows
    ages: Counts
    live: tuple[int, ...]
    mean_samples: float
    draws: Callable[..., np.random.Generator]
    losses: Callable[[], Figures]

    def amount(self, share: float) -> int:
        """Returns how many samples are a share of an epoch's: as many for all workers, but a worker keeps one."""
        return max(min(round(share * self.mean_samples), len(self.rows) - 1), 0)

    def generator(self) -> np.random.Generator:
        """Returns random numbers of this worker's epoch, from their beginning."""
        return self.draws(self.number, self.worker, 0)

    def partners(self, count: int) -> Counts:
        """Returns `count` other workers, drawn with the same numbers for all, so that in an epoch each is drawn by as
        many as it draws; empty where there is no other.
        """
        if len(self.live) < 2:
            return np.zeros(0, np.int64)
        shifts = self.draws(self.number).integers(1, len(self.live), size=count)
        return np.array(self.live, np.int64)[(self.live.index(self.worker) + shifts) % len(self.live)]

    def handed(self, places: Counts) -> Handed:
        """Returns the samples at some places of the worker's, each for a random worker; none where it is alone."""
        targets = self.partners(len(places))
        return Handed(self.rows[places[: len(targets)]], targets)


class DataMove(abc.ABC):
    """A policy of which samples a worker hands on at the end of each of its epochs, and to whom.

    Samples go over the links with their bytes while training goes on: from the sending on the sender has them no more,
    and the receiver draws from them once they have come. `alpa_dejavu.playground.testing.check_move` says if a policy
    is sound.
    """

    @abc.abstractmethod
    def choose(self, epoch: Epoch) -> Handed:
        """Returns the samples that a worker hands on now, of those that it has; at least one stays."""


def check_above_zero(owner: str, field: str, share: float, remedy: str) -> None:
    """Raises ValueError unless a share is above 0 and at most 1."""
    if not 0 < share <= 1:
        raise ValueError(f"{owner}: {field} is {share!r}, but must be above 0 and at most 1; {remedy}")


@final
@dataclasses.dataclass(frozen=True)
class RandomShare(DataMove):
    """A random share of the samples goes to random workers, so that sizes stay. It is that of an epoch's samples on the
    mean of all workers; 1 is a full shuffling.

    References:
        Nguyen and others, Why Globally Re-shuffle? Revisiting Data Shuffling in Large Scale Deep Learning, IPDPS 2022.
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        check_above_zero("random-share", "share", self.share, "0.05 is 5 %")

    def choose(self, epoch: Epoch) -> Handed:
        return epoch.handed(epoch.generator().permutation(len(epoch.rows))[: epoch.amount(self.share)])


@final
@dataclasses.dataclass(frozen=True)
class ByLoss(DataMove):
    """The samples with the highest loss at the worker's parameters go to random workers; shares as of `RandomShare`.

    Attributes:
        rest: epochs for which a sample that came stays before others; at 0 they wander on at once, as a sample that a
            worker has none like has a high loss there.
    """

    share: float = 0.1
    rest: int = 10

    def __post_init__(self) -> None:
        check_above_zero("by-loss", "share", self.share, "0.05 is 5 %")
        checks.not_negative("by-loss", "rest", self.rest)

    def choose(self, epoch: Epoch) -> Handed:
        order = np.lexsort((-epoch.losses(), epoch.ages < self.rest))
        return epoch.handed(order[: epoch.amount(self.share)])
