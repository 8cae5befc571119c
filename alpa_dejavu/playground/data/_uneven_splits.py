"""Splits that are uneven: by a Dirichlet distribution, in both of its definitions, and by how near samples are to each
other.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, ClassVar, TypeAlias, final

import numpy as np

from alpa_dejavu._util.extras import need
from alpa_dejavu.playground._arrays import Rows, Values
from alpa_dejavu.playground._data import Shards, Split, SplitTask, Uses, check_above_zero
from alpa_dejavu.playground.data._plain_splits import check_enough, dealt, groups_of, labels_of, pieces, sizes
from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Points: TypeAlias = Float[np.ndarray, "N dimensions"]

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

    def _over_workers(self, task: SplitTask, by_label: list[Rows], generator: np.random.Generator) -> tuple[Rows, ...]:
        lengths = np.array([len(rows) for rows in by_label])
        for _ in range(_TRIES):
            drawn = _dirichlet_shares(np.full((len(by_label), task.size), self.alpha), generator)
            cuts = np.rint(np.cumsum(drawn, axis=1)[:, :-1] * lengths[:, None]).astype(np.int64)
            parts = [np.split(rows, cut) for rows, cut in zip(by_label, cuts, strict=True)]
            rows_of_workers = tuple(np.concatenate([part[worker] for part in parts]) for worker in range(task.size))
            if min(map(len, rows_of_workers)) >= self.least:
                return rows_of_workers
        raise ValueError(
            f"dirichlet: alpha is {self.alpha}, but must be larger: in {_TRIES} draws one of {task.size} workers had "
            f"below {self.least} samples each time; take a larger one, or definition='workers-over-labels'"
        )

    def _over_labels(self, task: SplitTask, by_label: list[Rows], generator: np.random.Generator) -> tuple[Rows, ...]:
        left = np.array([len(rows) for rows in by_label])
        mixes = _dirichlet_shares(np.tile(self.alpha * left / left.sum(), (task.size, 1)), generator)
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


def _dirichlet_shares(
    shapes: Float[np.ndarray, "rows shares"], generator: np.random.Generator
) -> Float[np.ndarray, "rows shares"]:
    """Returns a row of shares for each row of a Dirichlet distribution's concentrations.

    By logarithms of gamma variables, as these may be below the smallest number: gamma(a) = gamma(a + 1) * U^(1/a).
    """
    logs = np.log(generator.standard_gamma(shapes + 1)) + np.log1p(-generator.random(shapes.shape)) / shapes
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


@final
@dataclasses.dataclass(frozen=True)
class Clusters(Split):
    """Each worker has samples whose inputs are near each other, by k-means: so many clusters (None: one for each
    worker) that are cut, or joined, to as many pieces as there are workers. It needs no labels.

    References:
        Lloyd, Least Squares Quantization in PCM, IEEE Transactions on Information Theory 28(2), 1982.
    """

    clusters: int | None = None

    def __post_init__(self) -> None:
        checks.count("clusters", "clusters", 1 if self.clusters is None else self.clusters)

    def split(self, task: SplitTask) -> Shards:
        from sklearn.cluster import KMeans

        count = task.size if self.clusters is None else self.clusters
        check_enough(task, max(count, task.size))
        inputs = task.inputs.reshape(task.samples, -1).astype(np.float64)
        labels = KMeans(count, n_init=4, random_state=task.seed).fit_predict(inputs)
        parts = pieces(np.unique(labels, return_inverse=True)[1], task.size, task.generator())
        return Shards(dealt(parts, groups_of(task, 1), 1, similar=True))


@final
@dataclasses.dataclass(frozen=True)
class MovedPoints(Split):
    """A share of each worker's points of another split is moved in a projection to where the worker has none, and
    replaced there by the nearest samples, which other workers have, too.

    The points that are moved are those that others of the worker cover best, where they go are those of all points that
    are the farthest from the worker's, one after the other, each farthest from the ones before, too.

    Attributes:
        share: how many of a worker's points are moved.
        step: how much of the way they are moved.
        projection: "pca" or "umap".

    References:
        Gonzalez, Clustering to Minimize the Maximum Intercluster Distance, Theoretical Computer Science 38, 1985
            (farthest points first).
    """

    uses: ClassVar[Uses] = "at will"
    base: Split
    share: float = 0.1
    step: float = 1.0
    projection: str = "pca"
    dimensions: int = 8

    def __post_init__(self) -> None:
        checks.share("moved-points", "share", self.share)
        check_above_zero("moved-points", "step", self.step, "1 is the whole way")
        checks.one_of("moved-points", "projection", self.projection, ("pca", "umap"))
        checks.count("moved-points", "dimensions", self.dimensions)
        if self.projection == "umap":
            need("umap", "umap")

    def split(self, task: SplitTask) -> Shards:
        from scipy.spatial import cKDTree

        every = _projected(task.inputs, self.projection, self.dimensions, task.seed)
        near, rows = cKDTree(every), list[Rows]()
        for own in self.base.split(task).rows:
            kept, points = self._moved_points(every, own)
            rows.append(np.concatenate([kept, near.query(points)[1].astype(np.int64)]))
        return Shards(tuple(rows))

    def _moved_points(self, points: Points, own: Rows) -> tuple[Rows, Points]:
        """Returns the rows of a worker that stay, and the points to which the others move."""
        from scipy.optimize import linear_sum_assignment
        from scipy.spatial.distance import cdist

        count = min(round(self.share * len(own)), len(own) - 1)
        order = farthest_first(points[own], points[:0], len(own) - count)
        kept, moving = own[order], points[np.delete(own, order)]
        goals = points[farthest_first(points, points[kept], count)]
        _, chosen = linear_sum_assignment(cdist(moving, goals, "sqeuclidean"))
        return kept, moving + self.step * (goals[chosen] - moving)


def farthest_first(points: Points, begun: Points, count: int) -> Int[np.ndarray, " count"]:
    """Returns points' indices, each the farthest from all before it and the given ones; else the first begins."""
    away = np.full(len(points), np.inf)
    for point in begun:
        away = np.minimum(away, np.square(points - point).sum(axis=1))
    order = np.zeros(count, np.int64)
    for place in range(count):
        order[place] = np.argmax(away)
        away = np.minimum(away, np.square(points - points[order[place]]).sum(axis=1))
        away[order[place]] = -1.0  # once alone, also where points are equal
    return order


def _projected(inputs: Values, projection: str, dimensions: int, seed: int) -> Points:
    """Returns samples as points of at most so many dimensions, by PCA or UMAP.

    References:
        McInnes, Healy and Melville, UMAP: Uniform Manifold Approximation and Projection, 2018.
    """
    rows = inputs.reshape(len(inputs), -1).astype(np.float64)
    most = min(dimensions, *rows.shape)
    if projection == "umap":
        with warnings.catch_warnings():
            # It warns of what it can't do without TensorFlow, which isn't asked for.
            warnings.simplefilter("ignore", ImportWarning)
            from umap import UMAP

        near = min(15, len(rows) - 1)
        fitted = UMAP(n_components=most, n_neighbors=near, init="pca", random_state=seed, n_jobs=1)
    else:
        from sklearn.decomposition import PCA

        fitted = PCA(most, svd_solver="full")
    return np.asarray(fitted.fit_transform(rows), np.float64)
