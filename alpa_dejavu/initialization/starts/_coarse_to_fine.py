"""Sample widely, then closer around the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.initialization._layout import Leaves, Tensor
from alpa_dejavu.initialization.starts._base import Ask, Start, Started
from alpa_dejavu.initialization.starts._picture import Picture
from alpa_dejavu.initialization.starts._scales import LatinHypercube
from alpa_dejavu.problem import _check

FloatArray = NDArray[np.float64]
_SALT = 0xF17E


@final
@dataclasses.dataclass(frozen=True)
class CoarseToFine(Start):
    """Half of the candidates begin widely; the others, once those have reached the first rung, around the best of them.

    Around one of the best is, in the parameters: its start and random numbers of `closeness` times each tensor's
    standard deviation. In a picture: its point, moved by `closeness` times how far points are spread, and brought back
    to weights, whose tensors get the norms that they have at the best: between random points, weights are smaller.

    Attributes:
        coarse: where the first half begins.
        picture: None: in the parameters. "pca", or what has `fit_transform` and `inverse_transform` as
            `umap.UMAP(n_components=2)`: in its picture of the coarse starts.
        closeness: how far from the best the second half begins, against the spread of the first.
        best: so many of the first half have others around them.

    Raises ValueError for a closeness that isn't positive, a `best` below 1, or an unknown picture.
    """

    coarse: Start = dataclasses.field(default_factory=LatinHypercube)
    picture: Any = None
    closeness: float = 0.3
    best: int = 2
    waves = (0.5, 0.5)

    def __post_init__(self) -> None:
        _check.positive("coarse_to_fine", "closeness", self.closeness)
        _check.positive("coarse_to_fine", "best", self.best)
        if isinstance(self.picture, str) and self.picture != "pca":
            raise ValueError(
                f"coarse_to_fine: picture is {self.picture!r}, but must be None, 'pca' or an object that "
                "transforms and inverts"
            )

    def start(self, ask: Ask) -> tuple[Started, ...]:
        if not ask.tried:
            return self.coarse.start(ask)
        generator = np.random.default_rng([ask.seed, ask.numbers[0], _SALT])
        centres = [tried.started.weights for tried in ask.tried[: self.best]]
        if self.picture is None or len(ask.tried) < 3:
            return tuple(
                Started(_near(centres[n % len(centres)], ask.tensors, self.closeness, generator))
                for n in range(len(ask.numbers))
            )
        picture = Picture([tried.started.weights for tried in ask.tried], ask.tensors, self.picture, ask.seed)
        spread = picture.points.std(axis=0) * self.closeness
        started = []
        for n in range(len(ask.numbers)):
            centre = n % len(centres)
            point = picture.points[centre] + spread * generator.standard_normal(len(spread))
            started.append(Started(picture.weights(point, like=centres[centre]), tuple(point.tolist())))
        return tuple(started)


def _near(centre: Leaves, tensors: Sequence[Tensor], closeness: float, generator: np.random.Generator) -> Leaves:
    """Weights around some others; what is no weight stays."""
    moved = []
    for weight, tensor in zip(centre, tensors, strict=True):
        if not tensor.is_float:
            moved.append(weight)
            continue
        exact: FloatArray = weight.astype(np.float64)
        noise = generator.standard_normal(tensor.shape) * exact.std()
        moved.append(np.asarray(exact + closeness * noise).astype(tensor.dtype))
    return tuple(moved)
