"""Splits by how near samples are to each other: clusters, and points that are moved in a projection."""

from __future__ import annotations

import dataclasses
import importlib.util
import warnings
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground._data import Shards, Split, SplitTask, Uses
from alpa_dejavu.playground.data._plain_splits import check_enough, dealt, groups_of, pieces
from alpa_dejavu.problem import checks

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PROJECTIONS = ("pca", "umap")


@final
@dataclasses.dataclass(frozen=True)
class Clusters(Split):
    """Each worker has samples whose inputs are near each other, by k-means: clusters that are cut, or joined, to as
    many pieces as there are workers. It needs no labels.

    Attributes:
        clusters: the number of clusters; None: one for each worker.

    References:
        Lloyd, Least Squares Quantization in PCM, IEEE Transactions on Information Theory 28(2), 1982.
    """

    clusters: int | None = None

    def __post_init__(self) -> None:
        if self.clusters is not None:
            checks.count("clusters", "clusters", self.clusters)

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
        base: the split whose points are moved.
        share: how many of a worker's points are moved.
        step: how much of the way they are moved.
        projection: "pca" or "umap".
        dimensions: coordinates of the projection.

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
        if not 0 < self.step <= 1:
            raise ValueError(f"moved-points: step is {self.step!r}, but must be above 0 and at most 1; 1 is the whole "
                             "way")  # fmt: skip
        checks.one_of("moved-points", "projection", self.projection, PROJECTIONS)
        checks.count("moved-points", "dimensions", self.dimensions)
        if self.projection == "umap" and importlib.util.find_spec("umap") is None:
            raise ValueError("moved-points: projection is 'umap', but must be one that is installed; pip install "
                             "\"alpa-dejavu[umap]\", or choose projection='pca'")  # fmt: skip

    def split(self, task: SplitTask) -> Shards:
        from scipy.spatial import cKDTree

        every = _projected(task.inputs, self.projection, self.dimensions, task.seed)
        near, rows = cKDTree(every), list[Ints]()
        for own in self.base.split(task).rows:
            kept, points = self._moved(every, own)
            rows.append(np.concatenate([kept, near.query(points)[1].astype(np.int64)]))
        return Shards(tuple(rows))

    def _moved(self, points: Floats, own: Ints) -> tuple[Ints, Floats]:
        """The rows of a worker that stay, and the points to which the others move."""
        from scipy.optimize import linear_sum_assignment
        from scipy.spatial.distance import cdist

        count = min(round(self.share * len(own)), len(own) - 1)
        order = farthest_first(points[own], points[:0], len(own) - count)
        kept, moving = own[order], points[np.delete(own, order)]
        goals = points[farthest_first(points, points[kept], count)]
        _, chosen = linear_sum_assignment(cdist(moving, goals, "sqeuclidean"))
        return kept, moving + self.step * (goals[chosen] - moving)


def farthest_first(points: Floats, begun: Floats, count: int) -> Ints:
    """Returns the indices of points, each the farthest from all before it, and from those that are begun with; without
    any of these the first point comes first.
    """
    away = np.full(len(points), np.inf)
    for point in begun:
        away = np.minimum(away, np.square(points - point).sum(axis=1))
    order = np.zeros(count, np.int64)
    for place in range(count):
        order[place] = np.argmax(away)
        away = np.minimum(away, np.square(points - points[order[place]]).sum(axis=1))
        away[order[place]] = -1.0  # once alone, also where points are equal
    return order


def _projected(inputs: NDArray[Any], projection: str, dimensions: int, seed: int) -> Floats:
    """Returns samples, shape (N, ...), as points, shape (N, dimensions or fewer), by PCA or UMAP.

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
