"""Policies that hand on a share of the samples each epoch: at random, by loss, or by the conflict of gradients."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground._data_move import DataMove, Epoch, Handed
from alpa_dejavu.problem import checks

__all__ = ["REST", "ByConflict", "ByLoss", "RandomShare", "check_share", "first", "handed", "with_digest"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
WHICH = ("highest", "lowest")
REST = 10
_FLOAT_BYTES = 4


def check_share(owner: str, share: float, field: str = "share") -> None:
    """Raises ValueError unless a share of an epoch's samples is above 0 and at most 1."""
    if not 0 < share <= 1:
        raise ValueError(f"{owner}: {field} is {share!r}, but must be above 0 and at most 1; 0.05 is 5 %")


def handed(epoch: Epoch, places: Ints, targets: Ints) -> Handed:
    """Returns the samples at places among those that a worker has, for as many targets; none where it is alone."""
    return Handed(epoch.rows[places[: len(targets)]], targets)


@final
@dataclasses.dataclass(frozen=True)
class RandomShare(DataMove):
    """A random share of the samples goes to random workers, so that sizes stay. A share of 1 is a full shuffling.

    Attributes:
        share: how many samples are handed on, of an epoch's on the mean of all workers.

    References:
        Nguyen and others, Why Globally Re-shuffle? Revisiting Data Shuffling in Large Scale Deep Learning, IPDPS 2022.
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        check_share("random-share", self.share)

    def choose(self, epoch: Epoch) -> Handed:
        """Returns random samples, each for another random worker."""
        places = epoch.generator().permutation(len(epoch.rows))[: epoch.amount(self.share)]
        return handed(epoch, places, epoch.partners(len(places)))


@final
@dataclasses.dataclass(frozen=True)
class ByLoss(DataMove):
    """The samples with the highest or the lowest loss at the worker's parameters go to random workers.

    Attributes:
        share: how many samples are handed on, of an epoch's on the mean of all workers.
        which: "highest" or "lowest".
        rest: epochs for which a sample that came stays before others; at 0 those of the highest loss wander on at once,
            as a sample that a worker has none like has a high loss there.
    """

    share: float = 0.1
    which: str = "highest"
    rest: int = REST

    def __post_init__(self) -> None:
        check_share("by-loss", self.share)
        checks.one_of("by-loss", "which", self.which, WHICH)
        checks.not_negative("by-loss", "rest", self.rest)

    def choose(self, epoch: Epoch) -> Handed:
        """Returns the samples of the most or least loss, each for a random worker."""
        losses = epoch.losses() * (-1 if self.which == "highest" else 1)
        places = first(epoch, losses, self.share, self.rest)
        return handed(epoch, places, epoch.partners(len(places)))


@final
@dataclasses.dataclass(frozen=True)
class ByConflict(DataMove):
    """The samples whose gradients conflict the most with those of another worker go to it: it has none like them.

    In each epoch a worker has one random partner, and the mean of the partner's gradients from the epoch before, which
    the partner sends in a random projection; samples of the least cosine with it are handed on. Without one, as in the
    first epoch, they are random.

    Attributes:
        share: how many samples are handed on, of an epoch's on the mean of all workers.
        dimensions: numbers of four bytes that a partner sends in an epoch.
        rest: epochs for which a sample that came stays before others.
    """

    share: float = 0.1
    dimensions: int = 64
    rest: int = REST

    def __post_init__(self) -> None:
        check_share("by-conflict", self.share)
        checks.count("by-conflict", "dimensions", self.dimensions)
        checks.not_negative("by-conflict", "rest", self.rest)

    def choose(self, epoch: Epoch) -> Handed:
        """Returns the samples that conflict the most with the partner's, all for the partner."""
        agreement = with_digest(epoch, self.dimensions)
        places = first(epoch, agreement, self.share, self.rest)
        return handed(epoch, places, np.repeat(epoch.partners(1), len(places)))


def first(epoch: Epoch, figures: Floats, share: float, rest: int) -> Ints:
    """Returns the places of a share of a worker's samples: those with the least figures of all that have rested, and
    only where these are too few, of the others.
    """
    return np.lexsort((figures, epoch.ages < rest))[: epoch.amount(share)]


def with_digest(epoch: Epoch, dimensions: int) -> Floats:
    """Returns the cosines of the gradients of a worker's samples with the mean of those of its partner, shape (m,), as
    that told it an epoch before; random numbers where it told none. Tells the worker's own mean to whom it is the
    partner of in the next epoch.
    """
    gradients = epoch.gradients(dimensions).astype(np.float64)
    for asker in epoch.askers(1, later=1).tolist():
        key, value = ("mean gradient", epoch.number + 1), gradients.mean(axis=0)
        epoch.tell(asker, key, value, _FLOAT_BYTES * dimensions)
    theirs = epoch.memory.pop(("mean gradient", epoch.number), None)
    if theirs is None:
        return epoch.generator().random(len(gradients))
    norms = np.linalg.norm(gradients, axis=1) * np.linalg.norm(theirs)
    return np.asarray(gradients @ theirs / np.where(norms > 0, norms, 1.0))
