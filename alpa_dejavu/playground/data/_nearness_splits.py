"""Splits by how near samples are to each other, as they are or as points of few coordinates."""

from __future__ import annotations

import dataclasses
import importlib.util
import warnings
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground._data import Shards, Split, SplitTask
from alpa_dejavu.playground.data._plain_splits import check_enough, dealt, groups_of, pieces, sizes
from alpa_dejavu.problem import checks

__all__ = ["PROJECTIONS", "Clusters", "Diverse", "Projection", "check_projection", "projected"]

Floats = NDArray[np.float64]
PROJECTIONS = ("pca", "umap")


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Projection:
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


def check_projection(owner: str, projection: str, dimensions: int) -> None:
    """Raises ValueError unless there is such a projection, and what it needs is installed."""
    checks.one_of(owner, "projection", projection, PROJECTIONS)
    checks.count(owner, "dimensions", dimensions)
    if projection == "umap" and importlib.util.find_spec("umap") is None:
        raise ValueError(f"{owner}: projection is 'umap', but must be one that is installed; pip install "
                         "\"alpa-dejavu[umap]\", or choose projection='pca'")  # fmt: skip


def projected(inputs: NDArray[Any], projection: str, dimensions: int, seed: int) -> Projection:
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
    return Projection(np.asarray(fitted.fit_transform(rows), np.float64), fitted, inputs.shape[1:])


def _named(projection: str, dimensions: int, samples: int, seed: int) -> Any:
    if projection == "umap":
        with warnings.catch_warnings():
            # It warns of what it can't do without TensorFlow, which isn't asked for.
            warnings.simplefilter("ignore", ImportWarning)
            from umap import UMAP

        return UMAP(n_components=dimensions, n_neighbors=min(15, samples - 1), init="pca", random_state=seed, n_jobs=1)
    from sklearn.decomposition import PCA

    return PCA(dimensions, svd_solver="full")


Ints = NDArray[np.int64]


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
        """Returns the samples of each worker, a cluster or a part of one."""
        from sklearn.cluster import KMeans

        count = task.size if self.clusters is None else self.clusters
        check_enough(task, max(count, task.size))
        inputs = task.inputs.reshape(task.samples, -1).astype(np.float64)
        labels = KMeans(count, n_init=4, random_state=task.seed).fit_predict(inputs)
        parts = pieces(np.unique(labels, return_inverse=True)[1], task.size, task.generator())
        return Shards(dealt(parts, groups_of(task, 1), 1, similar=True), task.samples)


@final
@dataclasses.dataclass(frozen=True)
class Diverse(Split):
    """Each worker's samples are spread over all of a projection of the inputs, more evenly than by chance: of samples
    that are near each other each worker has as many. It needs no labels.

    Samples are put in a line by cutting the points in halves, along the widest coordinate, again and again; along that
    line each worker's share has a sample in each of equal parts.

    Attributes:
        projection: "pca" or "umap".
        dimensions: coordinates of the projection.
        by_speed: whether sizes are in proportion to the workers' speeds; if not, all are equal.
    """

    projection: str = "pca"
    dimensions: int = 8
    by_speed: bool = False

    def __post_init__(self) -> None:
        check_projection("diverse", self.projection, self.dimensions)

    def split(self, task: SplitTask) -> Shards:
        """Returns the samples of each worker, evenly along the line."""
        check_enough(task)
        points = projected(task.inputs, self.projection, self.dimensions, task.seed).points
        line, lengths, generator = _line(points, np.arange(task.samples)), sizes(task, self.by_speed), task.generator()
        places = [(np.arange(length) + generator.random(length)) / length for length in lengths]
        turns = np.repeat(np.arange(task.size), lengths)[np.argsort(np.concatenate(places), kind="stable")]
        return Shards(tuple(line[turns == worker] for worker in range(task.size)), task.samples)


def _line(points: Floats, rows: Ints) -> Ints:
    """Rows in an order in which neighbours are near each other, by halves along the widest coordinate."""
    if len(rows) < 3:
        return rows
    inside = points[rows]
    along = int(np.argmax(np.ptp(inside, axis=0)))
    order = rows[np.argsort(inside[:, along], kind="stable")]
    middle = len(rows) // 2
    return np.concatenate([_line(points, order[:middle]), _line(points, order[middle:])])
