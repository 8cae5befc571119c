"""Sample widely, then closer around the best."""

from __future__ import annotations

import dataclasses
import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from alpa_dejavu.problem import checks
from alpa_dejavu.training.initialization._layout import FloatArray, Leaves, Tensor, flat
from alpa_dejavu.training.initialization.starts._base import Ask, Start, Started
from alpa_dejavu.training.initialization.starts._scales import LatinHypercube

PICTURES = {"pca": 3, "umap": 4}
"""Pictures by name, and from how many points on they can be inverted."""


@final
class Picture:
    """A projection of candidates' weights to points of few coordinates, which can be inverted.

    Attributes:
        points: shape (N, coordinates), the points of the N candidates.
    """

    points: FloatArray

    def __init__(self, candidates: Sequence[Leaves], tensors: Sequence[Tensor], kind: Any, seed: int) -> None:
        """Fits a projection to candidates' weights: "pca", all of whose coordinates are kept, "umap", in two
        coordinates, or an object with `fit_transform` and `inverse_transform`.
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
        restored, begin = [], 0
        for tensor, example in zip(self._tensors, like, strict=True):
            if not tensor.is_float:
                restored.append(example)
                continue
            part = row[begin : begin + example.size]
            begin += example.size
            norm = np.linalg.norm(part)
            scale = np.linalg.norm(example.astype(np.float64)) / norm if norm > 0 else 0.0
            restored.append((part * scale).reshape(tensor.shape).astype(tensor.dtype))
        return tuple(restored)


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


_SALT = 0xF17E


@final
@dataclasses.dataclass(frozen=True)
class CoarseToFine(Start):
    """A start by which the first wave of candidates begins with widely spread weights, and each later one, once those
    before have reached the first rung (step of judging), nearer the best of them.

    Near one of the best means: its first weights plus noise of `closeness` times each tensor's standard deviation.
    Where a picture (a projection of weights to few coordinates) is used, it means: its point there, moved by
    `closeness` times the points' spread, and brought back to weights, whose tensors get the norms that the best one's
    have: between random points, weights are smaller.

    Attributes:
        coarse: the start of the first wave.
        picture: where to be near the best. None: in the weights. "pca", "umap" (by umap-learn), or an object with
            `fit_transform` and `inverse_transform`: in its picture of those before, if these are enough for one.
        closeness: how far from the best the second wave begins, as a fraction of these standard deviations or spread.
        best: near how many of those before a wave begins.
        waves: which fractions of all candidates begin together.
        shrink: how far from the best each wave after the second one begins, as a fraction of the wave's before it.

    Raises ValueError for a closeness that isn't positive, a `best` below 1, fewer than two waves, a `shrink` that isn't
    above 0 and at most 1, or an unknown picture, and RuntimeError for "umap" where it isn't installed.

    References:
        McInnes, Healy and Melville, UMAP: Uniform Manifold Approximation and Projection, arXiv:1802.03426, 2018.
    """

    coarse: Start = dataclasses.field(default_factory=LatinHypercube)
    picture: Any = None
    closeness: float = 0.3
    best: int = 2
    waves: tuple[float, ...] = (0.5, 0.5)
    shrink: float = 0.5

    def __post_init__(self) -> None:
        checks.positive("coarse_to_fine", "closeness", self.closeness)
        checks.positive("coarse_to_fine", "best", self.best)
        if len(self.waves) < 2 or not all(fraction > 0 for fraction in self.waves):
            raise ValueError(f"coarse_to_fine: waves is {self.waves!r}, but must be two positive fractions or more")
        if not 0 < self.shrink <= 1:
            raise ValueError(f"coarse_to_fine: shrink is {self.shrink!r}, but must be above 0 and at most 1")
        if isinstance(self.picture, str) and self.picture not in PICTURES:
            raise ValueError(
                f"coarse_to_fine: picture is {self.picture!r}, but must be None, {', '.join(map(repr, PICTURES))} or "
                "an object that transforms and inverts"
            )
        check_installed(self.picture)

    def start(self, ask: Ask) -> tuple[Started, ...]:
        if not ask.tried:
            return self.coarse.start(ask)
        closeness = self.closeness * self.shrink ** max(0, ask.wave - 1)
        generator = np.random.default_rng([ask.seed, ask.numbers[0], _SALT])
        centres = [tried.started.weights for tried in ask.tried[: self.best]]
        fewest = PICTURES[self.picture] if isinstance(self.picture, str) else min(PICTURES.values())
        if self.picture is None or len(ask.tried) < fewest:
            return tuple(
                Started(moved(centres[n % len(centres)], ask.tensors, closeness, generator))
                for n in range(len(ask.numbers))
            )
        picture = Picture([tried.started.weights for tried in ask.tried], ask.tensors, self.picture, ask.seed)
        spread = picture.points.std(axis=0) * closeness
        started = []
        for n in range(len(ask.numbers)):
            centre = n % len(centres)
            point = picture.points[centre] + spread * generator.standard_normal(len(spread))
            started.append(Started(picture.weights(point, like=centres[centre]), tuple(point.tolist())))
        return tuple(started)


def moved(weights: Leaves, tensors: Sequence[Tensor], strength: float, generator: np.random.Generator) -> Leaves:
    """Returns weights moved at random by `strength` standard deviations of each tensor; tensors without real numbers
    stay.
    """
    near = []
    for weight, tensor in zip(weights, tensors, strict=True):
        if tensor.is_float:
            exact = weight.astype(np.float64)
            noise = generator.standard_normal(tensor.shape) * exact.std()
            weight = np.asarray(exact + strength * noise).astype(tensor.dtype)
        near.append(weight)
    return tuple(near)
