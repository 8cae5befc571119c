"""The model's own start with each tensor at another scale; scales fill their space evenly."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np

from alpa_dejavu._util.extras import quiet_optuna
from alpa_dejavu.training.initialization._layout import FloatArray, Leaves, Tensor
from alpa_dejavu.training.initialization.starts._base import Ask, Start, Started

_SCALES_SALT = 0x5CA1E


@dataclasses.dataclass(frozen=True)
class Scales(Start):
    """A start that multiplies each tensor of two axes or more of the model's own weights by a scale, spread evenly in
    its logarithm.

    Attributes:
        lowest, highest: the range of the scales.

    Raises ValueError unless 0 < lowest < highest.
    """

    name: ClassVar[str]
    lowest: float = 0.25
    highest: float = 4.0

    def __post_init__(self) -> None:
        check_range(self.name, self.lowest, self.highest)

    @abc.abstractmethod
    def _points(self, dimensions: int, count: int, seed: Sequence[int]) -> FloatArray:
        """Returns `count` points of the unit cube, shape (count, dimensions)."""

    @final
    def start(self, ask: Ask) -> tuple[Started, ...]:
        dimensions = num_scales(ask.tensors)
        points = self._points(dimensions, len(ask.numbers), [ask.seed, ask.numbers[0], _SCALES_SALT])
        low, high = math.log(self.lowest), math.log(self.highest)
        scales = np.exp(low + (high - low) * points)
        return tuple(
            Started(scaled(ask.own(number), ask.tensors, row), tuple(row.tolist()))
            for number, row in zip(ask.numbers, scales, strict=True)
        )


@final
@dataclasses.dataclass(frozen=True)
class LatinHypercube(Scales):
    """A start that multiplies each tensor of two axes or more of the model's own weights by a scale from a Latin
    hypercube: for each tensor, N candidates have their scales in N different equal parts of the range.

    References:
        McKay, Beckman and Conover, A Comparison of Three Methods for Selecting Values of Input Variables, 1979.
    """

    name = "latin_hypercube"

    def _points(self, dimensions: int, count: int, seed: Sequence[int]) -> FloatArray:
        from scipy.stats import qmc

        points: FloatArray = qmc.LatinHypercube(dimensions, seed=np.random.default_rng(seed)).random(count)
        return points


@final
@dataclasses.dataclass(frozen=True)
class Sobol(Scales):
    """A start that multiplies each tensor of two axes or more of the model's own weights by a scale, a coordinate of a
    point of a scrambled Sobol sequence, one point for each candidate.

    References:
        Sobol, On the Distribution of Points in a Cube and the Approximate Evaluation of Integrals, 1967.
    """

    name = "sobol"

    def _points(self, dimensions: int, count: int, seed: Sequence[int]) -> FloatArray:
        from scipy.stats import qmc

        # A power of two of them, which is what they are even for; the first ones are as they would be alone.
        sequence = qmc.Sobol(dimensions, seed=np.random.default_rng(seed))
        points: FloatArray = sequence.random_base2((count - 1).bit_length())[:count]
        return points


def check_range(owner: str, lowest: float, highest: float) -> None:
    """Raises ValueError unless the range of scales has 0 < lowest < highest."""
    if not (0 < lowest < highest < math.inf):
        raise ValueError(f"{owner}: scales from {lowest!r} to {highest!r}, but must be from above 0 to more")


def num_scales(tensors: Sequence[Tensor]) -> int:
    """Returns how many tensors of a model are scaled (those of two axes or more); raises ValueError if there is
    none.
    """
    count = sum(tensor.is_matrix for tensor in tensors)
    if count == 0:
        raise ValueError("none of the model's parameters has two axes, so there is nothing to scale; use init='model'")
    return count


def scaled(own: Leaves, tensors: Sequence[Tensor], scales: FloatArray) -> Leaves:
    """Returns a model's weights with each tensor of two axes or more multiplied by its own scale."""
    left = iter(scales.tolist())
    return tuple(
        (weight.astype(np.float64) * next(left)).astype(tensor.dtype) if tensor.is_matrix else weight
        for weight, tensor in zip(own, tensors, strict=True)
    )


@final
@dataclasses.dataclass(frozen=True)
class OptunaSampler(Start):
    """A start that multiplies each tensor of two axes or more of the model's own weights by a scale that a sampler of
    Optuna suggests.

    Candidates begin in four waves: the sampler is told the losses that earlier waves promise at the first rung.

    Attributes:
        sampler: such as `optuna.samplers.GPSampler(seed=1)`; None: a TPE sampler with the run's seed. One that keeps
            its own random numbers gives others when it is used again.
        lowest, highest: the range of the scales.

    Raises ValueError unless 0 < lowest < highest.

    References:
        Akiba et al., Optuna: A Next-generation Hyperparameter Optimization Framework, KDD 2019.
    """

    sampler: Any = None
    lowest: float = 0.25
    highest: float = 4.0
    waves = (0.25, 0.25, 0.25, 0.25)

    def __post_init__(self) -> None:
        check_range("optuna", self.lowest, self.highest)

    def start(self, ask: Ask) -> tuple[Started, ...]:
        names = [f"scale_{n}" for n in range(num_scales(ask.tensors))]
        with quiet_optuna() as optuna:
            sampler = self.sampler or optuna.samplers.TPESampler(seed=ask.seed + ask.numbers[0], n_startup_trials=4)
            study = optuna.create_study(sampler=sampler)
            scale = optuna.distributions.FloatDistribution(self.lowest, self.highest, log=True)
            space = dict.fromkeys(names, scale)
            for tried in ask.tried:
                point = dict(zip(names, tried.started.point, strict=True))
                study.add_trial(optuna.trial.create_trial(params=point, distributions=space, value=tried.promised))
            points = [[study.ask(space).params[name] for name in names] for _ in ask.numbers]
        return tuple(
            Started(scaled(ask.own(number), ask.tensors, np.array(point)), tuple(point))
            for number, point in zip(ask.numbers, points, strict=True)
        )
