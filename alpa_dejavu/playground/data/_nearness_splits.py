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

__all__ = ["Clusters", "MovedPoints"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PROJECTIONS = ("pca", "umap")
REPLACED_BY = ("samples", "inverse")


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
        return Shards(dealt(parts, groups_of(task, 1), 1, similar=True), task.samples)


@final
@dataclasses.dataclass(frozen=True)
class MovedPoints(Split):
    """A share of each worker's points of another split is moved in a projection to where the worker has none, and
    replaced there by the nearest samples, which other workers have, too, or by the projection's inverse.

    The points that are moved are those that others of the worker cover best, where they go are those of all points that
    are the farthest from the worker's, one after the other, each farthest from the ones before, too. A sample that the
    inverse makes is synthetic, and has the target of the nearest sample.

    Attributes:
        base: the split whose points are moved.
        share: how many of a worker's points are moved.
        step: how much of the way they are moved.
        projection: "pca" or "umap".
        dimensions: coordinates of the projection.
        replaced_by: "samples" or "inverse".

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
    replaced_by: str = "samples"

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
        checks.one_of("moved-points", "replaced_by", self.replaced_by, REPLACED_BY)

    def split(self, task: SplitTask) -> Shards:
        from scipy.spatial import cKDTree

        base = self.base.split(task)
        if base.made_inputs is not None:
            raise ValueError("moved-points: base makes samples itself, but must not; choose another one")
        picture = _projected(task.inputs, self.projection, self.dimensions, task.seed)
        near, rows, moved = cKDTree(picture.points), list[Ints](), list[Floats]()
        for own in base.rows:
            kept, points = self._moved(picture.points, own)
            if self.replaced_by == "samples":
                rows.append(np.concatenate([kept, near.query(points)[1].astype(np.int64)]))
            else:
                begun = task.samples + sum(map(len, moved))
                rows.append(np.concatenate([kept, np.arange(begun, begun + len(points))]))
                moved.append(points)
        if not sum(map(len, moved)):
            return Shards(tuple(rows), task.samples)
        points = np.concatenate(moved)
        synthetic = picture.inverse(points).astype(task.inputs.dtype)
        return Shards(tuple(rows), task.samples, synthetic, task.targets[near.query(points)[1]])

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


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Projection:
    """Points of samples.

    Attributes:
        points: shape (N, dimensions).
        fitted: what made them, which has `inverse_transform`.
        shape: of one sample.
    """

    points: Floats
    fitted: Any
    shape: tuple[int, ...]

    def inverse(self, points: Floats) -> NDArray[Any]:
        """Returns the samples that points stand for, shape (points, *shape)."""
        return np.asarray(self.fitted.inverse_transform(points)).reshape(-1, *self.shape)


def _projected(inputs: NDArray[Any], projection: str, dimensions: int, seed: int) -> _Projection:
    """Returns samples as points, by PCA or UMAP.

    Args:
        inputs: shape (N, ...).
        projection: one of `PROJECTIONS`.
        dimensions: coordinates of a point; fewer where the samples have fewer.
        seed: of UMAP.

    References:
        McInnes, Healy and Melville, UMAP: Uniform Manifold Approximation and Projection, 2018.
    """
    rows = inputs.reshape(len(inputs), -1).astype(np.float64)
    fitted = _named(projection, min(dimensions, *rows.shape), len(rows), seed)
    return _Projection(np.asarray(fitted.fit_transform(rows), np.float64), fitted, inputs.shape[1:])


def _named(projection: str, dimensions: int, samples: int, seed: int) -> Any:
    if projection == "umap":
        with warnings.catch_warnings():
            # It warns of what it can't do without TensorFlow, which isn't asked for.
            warnings.simplefilter("ignore", ImportWarning)
            from umap import UMAP

        return UMAP(n_components=dimensions, n_neighbors=min(15, samples - 1), init="pca", random_state=seed, n_jobs=1)
    from sklearn.decomposition import PCA

    return PCA(dimensions, svd_solver="full")
