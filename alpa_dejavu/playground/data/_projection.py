"""Samples as points of few coordinates, and back."""

from __future__ import annotations

import dataclasses
import importlib.util
import warnings
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import checks

__all__ = ["PROJECTIONS", "Projection", "check_projection", "projected"]

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
