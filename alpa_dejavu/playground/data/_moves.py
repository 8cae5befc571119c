"""Policies that hand on a share of the samples each epoch: at random, or by loss."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np

from alpa_dejavu.playground._data import DataMove, Epoch, Handed
from alpa_dejavu.problem import checks

__all__ = ["ByLoss", "RandomShare"]


def _check_share(owner: str, share: float) -> None:
    if not 0 < share <= 1:
        raise ValueError(f"{owner}: share is {share!r}, but must be above 0 and at most 1; 0.05 is 5 %")


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
        _check_share("random-share", self.share)

    def choose(self, epoch: Epoch) -> Handed:
        return epoch.handed(epoch.generator().permutation(len(epoch.rows))[: epoch.amount(self.share)])


@final
@dataclasses.dataclass(frozen=True)
class ByLoss(DataMove):
    """The samples with the highest loss at the worker's parameters go to random workers.

    Attributes:
        share: how many samples are handed on, of an epoch's on the mean of all workers.
        rest: epochs for which a sample that came stays before others; at 0 they wander on at once, as a sample that a
            worker has none like has a high loss there.
    """

    share: float = 0.1
    rest: int = 10

    def __post_init__(self) -> None:
        _check_share("by-loss", self.share)
        checks.not_negative("by-loss", "rest", self.rest)

    def choose(self, epoch: Epoch) -> Handed:
        order = np.lexsort((-epoch.losses(), epoch.ages < self.rest))
        return epoch.handed(order[: epoch.amount(self.share)])
