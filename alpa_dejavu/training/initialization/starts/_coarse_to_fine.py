"""Sample widely, then closer around the best."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import numpy as np

from alpa_dejavu.problem import checks
from alpa_dejavu.training.initialization._breed import moved
from alpa_dejavu.training.initialization.starts._base import Ask, Start, Started
from alpa_dejavu.training.initialization.starts._picture import PICTURES, Picture, check_installed
from alpa_dejavu.training.initialization.starts._scales import LatinHypercube

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
