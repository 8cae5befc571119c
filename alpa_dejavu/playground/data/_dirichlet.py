"""Splits by a Dirichlet distribution, in both of its definitions."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground._data import Shards, Split, SplitTask
from alpa_dejavu.playground.data._plain_splits import check_enough, labels_of, sizes
from alpa_dejavu.problem import checks

Ints = NDArray[np.int64]
DEFINITIONS = ("labels-over-workers", "workers-over-labels")
_TRIES = 1000


@final
@dataclasses.dataclass(frozen=True)
class Dirichlet(Split):
    """Labels are spread unevenly, by shares from a Dirichlet distribution: the smaller alpha is, the fewer labels has a
    worker.

    Attributes:
        alpha: the concentration; shares are equal in the limit of large ones.
        definition: "labels-over-workers": each label's samples are shared among the workers by shares that are drawn
            for the label, so that workers have unlike numbers of samples, too (Yurochkin and others); or
            "workers-over-labels": all workers have as many samples, by shares of labels that are drawn for the worker,
            with concentrations of alpha times the labels' shares of all samples, which sum to alpha (Hsu and others).
        least: samples that each worker must have; "labels-over-workers" draws anew until all have, up to 1000 times.
        bins: how many bins real values are cut into, at quantiles.

    References:
        Yurochkin and others, Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019.
        Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution, 2019.
    """

    alpha: float = 0.1
    definition: str = "labels-over-workers"
    least: int = 1
    bins: int = 10

    def __post_init__(self) -> None:
        checks.positive("dirichlet", "alpha", self.alpha)
        checks.one_of("dirichlet", "definition", self.definition, DEFINITIONS)
        checks.count("dirichlet", "least", self.least)
        checks.count("dirichlet", "bins", self.bins)

    def split(self, task: SplitTask) -> Shards:
        check_enough(task, task.size * self.least)
        labels, generator = labels_of(task.targets, self.bins), task.generator()
        by_label = [generator.permutation(np.flatnonzero(labels == label)) for label in range(labels.max() + 1)]
        draw = self._over_workers if self.definition == DEFINITIONS[0] else self._over_labels
        return Shards(draw(task, by_label, generator))

    def _over_workers(self, task: SplitTask, by_label: list[Ints], generator: np.random.Generator) -> tuple[Ints, ...]:
        lengths = np.array([len(rows) for rows in by_label])
        for _ in range(_TRIES):
            drawn = _drawn(np.full((len(by_label), task.size), self.alpha), generator)
            cuts = np.rint(np.cumsum(drawn, axis=1)[:, :-1] * lengths[:, None]).astype(np.int64)
            parts = [np.split(rows, cut) for rows, cut in zip(by_label, cuts, strict=True)]
            rows_of_workers = tuple(np.concatenate([part[worker] for part in parts]) for worker in range(task.size))
            if min(map(len, rows_of_workers)) >= self.least:
                return rows_of_workers
        raise ValueError(
            f"dirichlet: alpha is {self.alpha}, but must be larger: in {_TRIES} draws one of {task.size} workers had "
            f"below {self.least} samples each time; take a larger one, or definition='workers-over-labels'"
        )

    def _over_labels(self, task: SplitTask, by_label: list[Ints], generator: np.random.Generator) -> tuple[Ints, ...]:
        left = np.array([len(rows) for rows in by_label])
        mixes = _drawn(np.tile(self.alpha * left / left.sum(), (task.size, 1)), generator)
        rows_of_workers = []
        for mix, size in zip(mixes, sizes(task, by_speed=False), strict=True):
            rows = list[int]()
            for _ in range(size):
                weights = np.where(left > 0, mix, 0.0)
                if weights.sum() <= 0:  # all labels of its mix are used up
                    weights = left.astype(np.float64)
                label = int(generator.choice(len(left), p=weights / weights.sum()))
                left[label] -= 1
                rows.append(int(by_label[label][left[label]]))
            rows_of_workers.append(np.array(rows, np.int64))
        return tuple(rows_of_workers)


def _drawn(shapes: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
    """A row of shares for each row of a Dirichlet distribution's concentrations.

    By logarithms of gamma variables, as these may be below the smallest number: gamma(a) = gamma(a + 1) * U^(1/a).
    """
    logs = np.log(generator.standard_gamma(shapes + 1)) + np.log1p(-generator.random(shapes.shape)) / shapes
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))
