"""Weights of many candidates as points of few coordinates, and back."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from alpa_dejavu.training.initialization._layout import FloatArray, Leaves, Tensor

PICTURES = {"pca": 3, "umap": 4}
"""Pictures by name, and from how many points on they can be inverted."""


def flat(weights: Leaves, tensors: Sequence[Tensor]) -> FloatArray:
    """Returns all real numbers of a model's weights as one vector."""
    parts = [w.astype(np.float64).ravel() for w, tensor in zip(weights, tensors, strict=True) if tensor.is_float]
    return np.concatenate(parts)


@final
class Picture:
    """A projection of candidates' weights to points of few coordinates, which can be inverted.

    Attributes:
        points: shape (N, coordinates), the points of the N candidates.
    """

    points: FloatArray

    def __init__(self, candidates: Sequence[Leaves], tensors: Sequence[Tensor], kind: Any, seed: int) -> None:
        """Fits the projection.

        Args:
            candidates: the weights of each candidate.
            tensors: name, shape and dtype of each array of weights.
            kind: "pca", all of whose coordinates are kept, "umap", in two coordinates, or an object with
                `fit_transform` and `inverse_transform`.
            seed: the seed of "pca" and "umap".

        Raises:
            RuntimeError: UMAP isn't installed.
        """
        self._tensors = tensors
        rows = np.stack([flat(weights, tensors) for weights in candidates])
        self._projection = kind = _named(kind, rows, seed) if isinstance(kind, str) else kind
        self.points = np.asarray(kind.fit_transform(rows), np.float64)

    def weights(self, point: FloatArray, like: Leaves) -> Leaves:
        """Returns the weights that a point of the projection stands for, each tensor scaled to the norm that it has in
        the weights `like`.
        """
        row = np.asarray(self._projection.inverse_transform(point[None]), np.float64)[0]
        made, begin = [], 0
        for tensor, example in zip(self._tensors, like, strict=True):
            if not tensor.is_float:
                made.append(example)
                continue
            part = row[begin : begin + example.size]
            begin += example.size
            norm = np.linalg.norm(part)
            scale = np.linalg.norm(example.astype(np.float64)) / norm if norm > 0 else 0.0
            made.append((part * scale).reshape(tensor.shape).astype(tensor.dtype))
        return tuple(made)


def check_installed(kind: Any) -> None:
    """Raises RuntimeError if the projection "umap" is asked for and umap-learn isn't installed; imports nothing."""
    if isinstance(kind, str) and kind == "umap" and importlib.util.find_spec("umap") is None:
        raise RuntimeError("UMAP is not installed: pip install \"alpa-dejavu[umap]\", or take picture='pca'")


def _named(kind: str, rows: FloatArray, seed: int) -> Any:
    check_installed(kind)
    if kind == "umap":
        with warnings.catch_warnings():
            # It warns of what it can't do without TensorFlow, which isn't asked for.
            warnings.simplefilter("ignore", ImportWarning)
            from umap import UMAP

        # Few points have no spectrum to begin from.
        return UMAP(n_neighbors=min(15, len(rows) - 1), init="pca", random_state=seed, n_jobs=1)
    from sklearn.decomposition import PCA

    # The last coordinate of N points around their mean is nothing.
    return PCA(min(len(rows) - 1, rows.shape[1]), svd_solver="full", random_state=seed)
