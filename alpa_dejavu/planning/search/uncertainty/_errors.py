"""The errors of predictions: normal in their logarithms, drawn jointly, and known better after a measurement."""

from __future__ import annotations

import dataclasses
import functools
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.planning.search.uncertainty._resolved import Resolved, Resolver, WorkSeconds
from alpa_dejavu.planning.search.uncertainty._spreads import CLASSES, COMPUTE, DOUBLINGS, ON_ANY_GPU, RUNTIME, Spreads

_NUM_STEPS, _DAMPING = 40, 0.5


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Factors:
    """The factors from predicted to actual seconds, in K random draws."""

    common: FloatArray  # the factor that all work of each of N classes has in common, shape (K, N)
    # The further factor that each of M kinds of layers, and of layers on a mesh, has on its matrix products, and on its
    # other operators, shape (K, M, 2).
    own: FloatArray
    weights: tuple[float, float] = (1.0, 1.0)  # powers of a layer's two factors: on any mesh, and on its own

    def __len__(self) -> int:
        return len(self.common)

    def divided(self, resolved: Resolved) -> FloatArray:
        """Returns the factor that comes of a stage's number of devices and training framework, shape (K,)."""
        return np.asarray(self.common[:, DOUBLINGS] ** resolved.doublings * self.common[:, RUNTIME])

    def of_variants(self, resolved: Resolved, draw: int) -> FloatArray:
        """Returns one draw of the factors for each of V ways to shard a layer and each of N classes, shape (V, N)."""
        factors = np.repeat(self.common[draw][None], len(resolved.own), axis=0)
        factors[:, list(COMPUTE)] *= self.of_layers(resolved, np.arange(len(factors)))[draw]
        return factors

    def of_layers(self, resolved: Resolved, chosen: NDArray[np.intp]) -> FloatArray:
        """Returns V variants' own factors on products and other operators in each of K draws, shape (K, V, 2)."""
        on_any_mesh, on_its_mesh = self._weighted
        numbers = resolved.own[chosen].T
        return np.asarray(on_any_mesh[:, numbers[0]] * on_its_mesh[:, numbers[1]])

    @functools.cached_property
    def _weighted(self) -> tuple[FloatArray, FloatArray]:
        return self.own ** self.weights[0], self.own ** self.weights[1]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Errors:
    """The joint normal distribution of the errors of predicted seconds.

    The first N errors are each shared by all work of one class (matrix products, all-reduces within hosts, ...); the
    other M are each a kind of layers' own. They are standard normal until a stage is measured.
    """

    resolver: Resolver  # the object that has numbered the errors
    spreads: Spreads  # what one standard deviation of each error is, as the logarithm of a factor on seconds
    mean: FloatArray  # the mean of each error in standard deviations, shape (N + M,)
    root: FloatArray | None = None  # times its transpose it is the covariance, (N + M, N + M); None: the identity

    @classmethod
    def unmeasured(cls, resolver: Resolver) -> Errors:
        """Returns the distribution, before any measurement, of the errors that a resolver has met so far."""
        return cls(resolver, resolver.spreads, np.zeros(len(CLASSES) + resolver.num_own))

    @property
    def middle(self) -> Factors:
        """Returns the factors from predicted to actual seconds where each error is at its mean, as a single draw."""
        return self._factors(self.mean[None])

    def drawn(self, count: int, seed: int = 0, across: int | None = None) -> Factors:
        """Returns `count` joint draws of the factors, in pairs whose errors are opposite. What frameworks are off is
        drawn last: where it is known to be nothing, draws are as without it. What errs alike on other devices, too, is
        the same in draws of the same `across`, a seed.
        """
        rng, pairs = np.random.default_rng(seed), (count + 1) // 2
        half = rng.standard_normal((pairs, len(self.mean) - 1))
        half = np.insert(half, RUNTIME, rng.standard_normal(pairs), axis=1)
        if across is not None:
            for number, share in ON_ANY_GPU.items():
                alike = np.random.default_rng((across, number)).standard_normal(pairs)
                half[:, number] = np.sqrt(share) * alike + np.sqrt(1 - share) * half[:, number]
        normal = np.stack([half, -half], axis=1).reshape(-1, len(self.mean))[:count]
        return self._factors(self.mean + (normal if self.root is None else normal @ self.root.T))

    def measured(
        self, seconds: WorkSeconds, resolved: Resolved, first: int, last: int, ratio: float, noise: float = 0.03
    ) -> Errors:
        """Returns the distribution of prediction errors after a stage of layers first..last, with predicted `seconds`
        split by `resolved`, took `ratio` times as long; `noise` is the standard deviation of the ratio's logarithm.

        The logarithm of its seconds is linearised where errors are most probable, as an iterated Kalman filter does. A
        root of the covariance is updated: no variance falls below zero by roundoff, and draws depend on measurements
        continuously.

        References:
            Bell and Cathey, The iterated Kalman filter update as a Gauss-Newton method, IEEE TAC 38(2), 1993.
            Potter and Stern, Statistical filtering of space navigation measurements, AIAA Guidance and Control, 1963.
        """
        root = np.eye(len(self.mean)) if self.root is None else self.root
        layers = len(self.mean) - len(CLASSES)
        ones = Factors(np.ones((1, len(CLASSES))), np.ones((1, layers, len(COMPUTE))))
        nominal, mean = float(entry_seconds(seconds, resolved, first, last, ones).sum()), self.mean
        gain, along, variance = np.zeros_like(mean), np.zeros_like(mean), noise**2
        for _ in range(_NUM_STEPS):
            now, slope = self._log_and_slope(seconds, resolved, first, last, mean)
            along = root.T @ slope
            variance = float(along @ along) + noise**2
            gain = root @ along / variance
            off = np.log(ratio) + np.log(nominal) - now - slope @ (self.mean - mean)
            mean = mean + _DAMPING * (self.mean + gain * off - mean)
        kept = root - np.outer(gain, along) / (1 + noise / np.sqrt(variance))
        return dataclasses.replace(self, mean=mean, root=kept)

    def _log_and_slope(
        self, seconds: WorkSeconds, resolved: Resolved, first: int, last: int, at: FloatArray
    ) -> tuple[float, FloatArray]:
        """Returns the logarithm of a stage's seconds, and its derivative by each error."""
        factors, slope = self._factors(at[None]), np.zeros_like(at)
        divided = float(factors.divided(resolved)[0])
        if len(seconds.of_variants):
            chosen = _variants(resolved, first, last)
            drawn = seconds.of_variants[chosen] * factors.of_variants(resolved, 0)[chosen]
            slope[: len(CLASSES)] += drawn.sum(axis=0) * self.spreads.common
            np.add.at(slope, len(CLASSES) + resolved.own[chosen], np.outer(drawn @ self.spreads.own, factors.weights))
        for number, ranges in seconds.of_ranges.items():
            slope[number] += ranges[first, last] * factors.common[0, number] * self.spreads.common[number]
        total = float(entry_seconds(seconds, resolved, first, last, factors).sum())
        slope *= divided / total
        slope[DOUBLINGS] += resolved.doublings * self.spreads.common[DOUBLINGS]
        slope[RUNTIME] += self.spreads.common[RUNTIME]
        return float(np.log(total)), slope

    def _factors(self, normal: FloatArray) -> Factors:
        common, own = normal[:, : len(CLASSES)], normal[:, len(CLASSES) :]
        sizes, alike = self.spreads.own[list(COMPUTE)], self.spreads.alike
        weights = alike**0.5, (1 - alike) ** 0.5
        return Factors(np.exp(common * self.spreads.common), np.exp(own[:, :, None] * sizes), weights)


def entry_seconds(seconds: WorkSeconds, resolved: Resolved, first: int, last: int, factors: Factors) -> FloatArray:
    """Returns the seconds of a stage of layers first..last (inclusive) in each of K draws of errors, shape (K,)."""
    total = np.zeros(len(factors))
    if len(seconds.of_variants):
        chosen = _variants(resolved, first, last)
        rows = seconds.of_variants[chosen]
        own = factors.of_layers(resolved, chosen)
        for place, number in enumerate(COMPUTE):
            total += (own[:, :, place] @ rows[:, number]) * factors.common[:, number]
        rest = rows.sum(axis=0)
        rest[list(COMPUTE)] = 0.0
        total += factors.common @ rest
    for number, ranges in seconds.of_ranges.items():
        total += ranges[first, last] * factors.common[:, number]
    return total * factors.divided(resolved)


def layer_seconds(seconds: WorkSeconds, resolved: Resolved, first: int, last: int, factors: Factors) -> FloatArray:
    """Returns the seconds of each layer first..last of a stage in K draws, shape (K, layers), which add up to the
    stage's.

    Seconds of the stage as a whole, such as starts and combined collectives, are divided as the layers would have them
    if each were a stage of its own; evenly where none would.
    """
    layers = np.arange(first, last + 1)
    of_layers = np.zeros((len(factors), len(layers)))
    if len(seconds.of_variants):
        chosen = _variants(resolved, first, last)
        rows, own = seconds.of_variants[chosen], factors.of_layers(resolved, chosen)
        for number in range(rows.shape[1]):
            of_class = own[:, :, COMPUTE.index(number)] if number in COMPUTE else 1.0
            of_layers += factors.common[:, number, None] * rows[:, number] * of_class
    for number, ranges in seconds.of_ranges.items():
        alone = ranges[layers, layers]
        share = alone / alone.sum() if alone.sum() > 0 else np.full(len(layers), 1 / len(layers))
        of_layers += factors.common[:, number, None] * (ranges[first, last] * share)
    return np.asarray(of_layers * factors.divided(resolved)[:, None])


def _variants(resolved: Resolved, first: int, last: int) -> NDArray[np.intp]:
    if resolved.of_stages is None:
        return np.arange(first, last + 1)
    row = resolved.of_stages[first, last]
    return row[row >= 0]
