"""Splits by chance, by order and by label."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np

from alpa_dejavu.playground._split import Shards, Split, SplitTask
from alpa_dejavu.playground.data._shared import check_enough, dealt, groups_of, labels_of, pieces, shares, sizes
from alpa_dejavu.problem import checks

__all__ = ["ByLabel", "Independent", "Sorted"]


@final
@dataclasses.dataclass(frozen=True)
class Independent(Split):
    """Each worker has samples that are drawn from all, without replacement.

    Attributes:
        by_speed: whether sizes are in proportion to the workers' speeds; if not, all are equal.
    """

    by_speed: bool = False

    def split(self, task: SplitTask) -> Shards:
        """Returns the samples of each worker, by chance."""
        check_enough(task)
        order = task.generator().permutation(task.samples)
        return Shards(shares(order, sizes(task, self.by_speed)), task.samples)


@final
@dataclasses.dataclass(frozen=True)
class Sorted(Split):
    """Samples are sorted by target, label sets by their first label, and cut; ties are in an order by chance.

    Attributes:
        by_speed: whether sizes are in proportion to the workers' speeds; if not, all are equal.
    """

    by_speed: bool = False

    def split(self, task: SplitTask) -> Shards:
        """Returns the samples of each worker, those with the least targets for the first one."""
        check_enough(task)
        ranks = labels_of(task.targets, None)
        mixed = task.generator().permutation(task.samples)
        order = mixed[np.argsort(ranks[mixed], kind="stable")]
        return Shards(shares(order, sizes(task, self.by_speed)), task.samples)


@final
@dataclasses.dataclass(frozen=True)
class ByLabel(Split):
    """Each worker has samples of few labels; those of a group of workers are similar, or different.

    Where there are fewer workers than labels need, neighbouring labels count as one. Sizes differ as labels' do.

    Attributes:
        labels: labels of a worker, at most.
        groups: "similar": workers of one group have labels next to each other; "different": far from each other.
        group: workers of a group, which follow each other; None: a group is a host.
        bins: how many bins real values are cut into, at quantiles.

    References:
        Bellet, Kermarrec and Lavoie, D-Cliques, SRDS 2022 (groups whose labels are different).
    """

    labels: int = 1
    groups: str = "different"
    group: int | None = None
    bins: int = 10

    def __post_init__(self) -> None:
        checks.count("by-label", "labels", self.labels)
        checks.one_of("by-label", "groups", self.groups, ("similar", "different"))
        checks.count("by-label", "bins", self.bins)
        if self.group is not None:
            checks.count("by-label", "group", self.group)

    def split(self, task: SplitTask) -> Shards:
        """Returns the samples of each worker, pieces of few labels."""
        check_enough(task, task.size * self.labels)
        parts = pieces(labels_of(task.targets, self.bins), task.size * self.labels, task.generator())
        groups = groups_of(task, self.group)
        return Shards(dealt(parts, groups, self.labels, self.groups == "similar"), task.samples)
