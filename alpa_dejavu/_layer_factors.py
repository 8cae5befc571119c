"""What layers take of what was predicted, learned from measured stages."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np

from alpa_dejavu._ranges import FloatArray
from alpa_dejavu.problem import _check

__all__ = ["LayerFactors"]

_ROUNDS, _DAMPING = 40, 0.5


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LayerFactors:
    """What each of L layers takes of what was predicted, as far as measured stages tell: normal in the logarithms.

    Attributes:
        mean: of the logarithms, shape (L,).
        covariance: shape (L, L).
    """

    mean: FloatArray
    covariance: FloatArray

    @classmethod
    def unmeasured(cls, num_layers: int, common: float = 0.5, own: float = 0.5) -> LayerFactors:
        """Predictions are wrong by a factor that all layers have in common, and by one of each layer's own.

        Args:
            num_layers: L.
            common: one standard deviation of the logarithm of what they have in common.
            own: of each layer's.
        """
        _check.positive("layer factors", "num_layers", num_layers)
        _check.not_negative("layer factors", "common", common)
        _check.positive("layer factors", "own", own)
        return cls(np.zeros(num_layers), common**2 * np.ones((num_layers,) * 2) + own**2 * np.eye(num_layers))

    @property
    def factors(self) -> FloatArray:
        """The most probable ones, shape (L,)."""
        return np.exp(self.mean)

    def drifted(self, by: float) -> LayerFactors:
        """After time in which each layer's logarithm may have moved by `by`, one standard deviation."""
        return dataclasses.replace(self, covariance=self.covariance + by**2 * np.eye(len(self.mean)))

    def measured(self, layers_s: FloatArray, rest_s: float, seconds: float, noise: float) -> LayerFactors:
        """After a stage took some seconds, give or take `noise`.

        The logarithm of its seconds is made linear where it is most probable, as an iterated Kalman filter does.

        Args:
            layers_s: what was predicted of each layer, zero of those of other stages; shape (L,).
            rest_s: what else the stage was predicted to take.
            seconds: that it took.
            noise: one standard deviation of their logarithm.

        References:
            Bell and Cathey, The iterated Kalman filter update as a Gauss-Newton method, IEEE TAC 38(2), 1993.
        """
        mean, gain, slope = self.mean, np.zeros_like(self.mean), np.zeros_like(self.mean)
        for _ in range(_ROUNDS):
            each = layers_s * np.exp(mean)
            total = float(each.sum()) + rest_s
            slope = each / total
            gain = self.covariance @ slope / (slope @ self.covariance @ slope + noise**2)
            off = np.log(seconds / total) - slope @ (self.mean - mean)
            mean = mean + _DAMPING * (self.mean + gain * off - mean)
        covariance = self.covariance - np.outer(gain, slope @ self.covariance)
        return LayerFactors(mean, (covariance + covariance.T) / 2)
