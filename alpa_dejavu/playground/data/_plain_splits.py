"""Splits by chance, by order and by label, and the parts that all splits share."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import final

import numpy as np

from alpa_dejavu.playground._arrays import Counts, Rows, Values
from alpa_dejavu.playground._data import Shards, Split, SplitTask
from alpa_dejavu.problem import checks


def labels_of(targets: Values, bins: int | None) -> Counts:
    """Returns the label of each sample, from 0, in the order of the targets. These are whole numbers; or several labels
    of a sample, as columns of 0 and 1, each set of which is a label of its own; or real values, which are cut into bins
    at quantiles; without bins each value is its own.

    >>> labels_of(np.array([[0, 1], [1, 1], [0, 1]]), 4), labels_of(np.array([0.1, 5.0, 0.2, 3.0]), 2)
    (array([0, 1, 0]), array([0, 1, 0, 1]))
    """
    several = targets.ndim == 2 and bool(np.isin(targets, (0, 1)).all())
    if targets.ndim != 1 and not several:
        raise ValueError(f"targets has the shape {targets.shape}, but must be a label or a real value of each sample, "
                         "or columns of 0 and 1; choose a split that needs no labels, as 'independent'")  # fmt: skip
    if bins is not None and not several and np.issubdtype(targets.dtype, np.floating):
        edges = np.quantile(targets, np.arange(1, bins) / bins)
        targets = np.searchsorted(edges, targets, side="right")
    _, labels = np.unique(targets, axis=0, return_inverse=True)
    return labels.astype(np.int64).ravel()


def check_enough(task: SplitTask, needed: int) -> None:
    """Raises ValueError where there are fewer samples than workers, or than pieces of workers."""
    if task.samples < needed:
        raise ValueError(f"the number of samples is {task.samples}, but must be at least {needed}, so that each of the "
                         f"{task.size} workers has some; take fewer workers, or fewer labels of each")  # fmt: skip


def sizes(task: SplitTask, by_speed: bool) -> list[int]:
    """Returns how many samples each worker gets: as many each, or in proportion to its gradients per second, each at
    least one and within one of its share; the remainders are the largest ones.
    """
    if not by_speed:
        return [len(part) for part in np.array_split(np.arange(task.samples), task.size)]
    if min(task.compute_s) <= 0:
        raise ValueError(f"compute_s is {task.compute_s}, but must be above 0 where by_speed is true; give seconds, or "
                         "leave by_speed out")  # fmt: skip
    speeds = 1.0 / np.array(task.compute_s)
    exact = task.samples * speeds / speeds.sum()
    lengths = np.floor(exact).astype(np.int64)
    lengths[np.argsort(lengths - exact, kind="stable")[: task.samples - lengths.sum()]] += 1
    if lengths.min() < 1:
        slowest = int(lengths.argmin())
        raise ValueError(f"by_speed is true, but worker {slowest} would have no sample at compute_s "
                         f"{task.compute_s[slowest]}; take more samples, or leave by_speed out")  # fmt: skip
    return [int(size) for size in lengths]


def _cut(task: SplitTask, order: Rows, by_speed: bool) -> Shards:
    check_enough(task, task.size)
    return Shards(tuple(np.split(order, np.cumsum(sizes(task, by_speed))[:-1])))


def _by_label(labels: Counts, generator: np.random.Generator) -> Rows:
    """Returns the order of samples by their labels, those of a label in an order by chance."""
    mixed = generator.permutation(len(labels))
    return mixed[np.argsort(labels[mixed], kind="stable")]


def pieces(labels: Counts, count: int, generator: np.random.Generator) -> list[Rows]:
    """Returns the samples in pieces, ordered by label; each has one label where there are as many pieces as labels, and
    neighbouring labels where there are fewer. A label's pieces are of equal size, the largest piece as small as can be.
    """
    order, counts = _by_label(labels, generator), np.bincount(labels)
    if count < len(counts):
        return list(np.array_split(order, count))
    cuts = np.ones(len(counts), np.int64)
    for _ in range(count - len(counts)):
        cuts[np.argmax(counts / cuts)] += 1
    by_label = np.split(order, np.cumsum(counts)[:-1])
    return [piece for rows, parts in zip(by_label, cuts, strict=True) for piece in np.array_split(rows, parts)]


def groups_of(task: SplitTask, group: int | None) -> list[list[int]]:
    """Returns the workers of each group: so many that follow each other, or, for None, those of each host."""
    if group is not None:
        return [list(range(start, min(start + group, task.size))) for start in range(0, task.size, group)]
    order = sorted(range(task.size), key=lambda worker: task.hosts[worker])
    return [list(members) for _, members in itertools.groupby(order, lambda worker: task.hosts[worker])]


def dealt(parts: Sequence[Rows], groups: Sequence[Sequence[int]], count: int, similar: bool) -> tuple[Rows, ...]:
    """Returns for each worker its pieces, `count` of them, of pieces that are in the order of their labels: those of a
    similar group follow each other, those of another one are as far from each other as can be.
    """
    size = sum(map(len, groups))
    pieces_of: dict[int, list[Rows]] = {}
    if similar:
        for group in groups:
            block, parts = parts[: count * len(group)], parts[count * len(group) :]
            pieces_of |= {worker: list(block[place :: len(group)]) for place, worker in enumerate(group)}
    else:
        turns = [worker for turn in itertools.zip_longest(*groups) for worker in turn if worker is not None]
        pieces_of = {worker: list(parts[place::size]) for place, worker in enumerate(turns)}
    return tuple(np.concatenate(pieces_of[worker]) for worker in range(size))


@final
@dataclasses.dataclass(frozen=True)
class Independent(Split):
    """Each worker has samples that are drawn from all, without replacement. Sizes are equal, or follow speeds."""

    by_speed: bool = False

    def split(self, task: SplitTask) -> Shards:
        return _cut(task, task.generator().permutation(task.samples), self.by_speed)


@final
@dataclasses.dataclass(frozen=True)
class Sorted(Split):
    """Samples are sorted by target, label sets by their first label, and cut; ties are in an order by chance. Workers
    have as many each, or in proportion to their speeds.
    """

    by_speed: bool = False

    def split(self, task: SplitTask) -> Shards:
        return _cut(task, _by_label(labels_of(task.targets, None), task.generator()), self.by_speed)


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
        check_enough(task, task.size * self.labels)
        parts = pieces(labels_of(task.targets, self.bins), task.size * self.labels, task.generator())
        groups = groups_of(task, self.group)
        return Shards(dealt(parts, groups, self.labels, self.groups == "similar"))
