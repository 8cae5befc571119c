"""Learns from measured stages how many times its predicted seconds each layer takes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping
from typing import NamedTuple, final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.problem import checks

__all__ = ["LayerFactors", "MeasuredStage"]

_ROUNDS = 100
_DONE = 1e-9
_LEAST = 1e-3
"""A stage whose layers seem to take less than this share of its seconds takes that."""


@final
class MeasuredStage(NamedTuple):
    """A pipeline stage with its predicted seconds, layer by layer, and those measured in one step.

    Attributes:
        layers_s: the predicted seconds of each layer, zero for those of other stages; shape (L,).
        rest_s: the predicted seconds of all else in the stage, such as its collectives.
        seconds: the measured seconds of the whole stage.
    """

    layers_s: FloatArray
    rest_s: float
    seconds: float


@final
class _Seen(NamedTuple):
    """A stage as it was measured so far: `log_s` is the logarithm of its seconds, `variance` that of this."""

    layers_s: FloatArray
    rest_s: float
    log_s: float
    variance: float


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LayerFactors:
    """A model of the factors from layers' predicted to their actual seconds, as alike as measured stages allow.

    The stages of the plan that ran last say by which factor predictions are wrong in common. From that one, layers
    differ by factors whose relative entropy is least among those that explain all stages that were measured, of earlier
    plans too, each as exactly as it is known. That is a convex problem: layers that were in the same stages get like
    factors, and none gets below 0.

    Attributes:
        num_layers: how many layers the model has, L.
        noise: the standard deviation of the logarithm of a stage's measured seconds in one step.
        drift: the standard deviation of the change of its true value from one measured step to the next.
        own: how far a layer's factor may be from the common one, relative to it; well measured stages override that.
        seen: the stages measured so far, by the names that `measured` was given.
        latest: the names of the stages that were measured in the last step.

    References:
        Csiszar, I-divergence geometry of probability distributions and minimization problems, 1975.
    """

    num_layers: int
    noise: float = 0.1
    drift: float = 0.02
    own: float = 1.0
    seen: Mapping[Hashable, _Seen] = dataclasses.field(default_factory=dict)
    latest: tuple[Hashable, ...] = ()

    def __post_init__(self) -> None:
        checks.positive("layer factors", "num_layers", self.num_layers)
        checks.positive("layer factors", "noise", self.noise)
        checks.not_negative("layer factors", "drift", self.drift)
        checks.positive("layer factors", "own", self.own)

    def measured(self, stages: Mapping[Hashable, MeasuredStage]) -> LayerFactors:
        """Returns the model of layers' factors after one more training step, in which all of a plan's stages were
        measured.

        Args:
            stages: the measured stages, each by a name that is the same in every step that has this stage.
        """
        seen = {name: one._replace(variance=one.variance + self.drift**2) for name, one in self.seen.items()}
        for name, stage in stages.items():
            log_s, variance = math.log(stage.seconds), self.noise**2
            if name in seen:
                before = seen[name]
                gain = before.variance / (before.variance + variance)
                log_s, variance = before.log_s + gain * (log_s - before.log_s), gain * variance
            seen[name] = _Seen(stage.layers_s, stage.rest_s, log_s, variance)
        return dataclasses.replace(self, seen=seen, latest=tuple(stages))

    @property
    def common(self) -> float:
        """Returns the ratio of measured to predicted seconds of all layers together, for the plan that ran last."""
        last = [self.seen[name] for name in self.latest]
        predicted = sum(float(one.layers_s.sum()) for one in last)
        return sum(map(_layers_seconds, last)) / predicted if predicted > 0 else 1.0

    @property
    def factors(self) -> FloatArray:
        """Returns each layer's ratio of actual to predicted seconds, shape (L,); 1 before anything was measured."""
        if not self.seen:
            return np.ones(self.num_layers)
        return _least_entropy(list(self.seen.values()), self.common, self.own)


def _layers_seconds(one: _Seen) -> float:
    """Returns the measured seconds of a stage's layers, without the rest of the stage."""
    seconds = math.exp(one.log_s)
    return max(seconds - one.rest_s, _LEAST * seconds)


def _least_entropy(seen: list[_Seen], common: float, own: float) -> FloatArray:
    """Returns the factors of the layers, by Newton's method on the dual: a multiplier for each stage.

    Each factor is the common one times the exponential of the multipliers of the stages that the layer was in.
    """
    predicted = np.array([one.layers_s for one in seen]) * common
    seconds = np.array([_layers_seconds(one) for one in seen])
    layers = predicted.sum(axis=0) / np.maximum((predicted > 0).sum(axis=0), 1)
    share = np.divide(predicted, layers, out=np.zeros_like(predicted), where=layers > 0)
    # What a multiplier costs: little where a stage is known well.
    known = np.array([one.variance * math.exp(2 * one.log_s) for one in seen])
    loose = known / (own**2 * max(float(layers.mean()), 1e-300))

    def dual(multipliers: FloatArray) -> float:
        grown = layers @ np.exp(np.minimum(multipliers @ share, 700.0))
        return float(multipliers**2 @ loose / 2 + grown - multipliers @ seconds)

    found = np.zeros(len(seen))
    for _ in range(_ROUNDS):
        taken = layers * np.exp(found @ share)
        slope = loose * found + share @ taken - seconds
        step = np.linalg.solve(np.diag(loose) + (share * taken) @ share.T, -slope)
        size, now = 1.0, dual(found)
        while size > _DONE and dual(found + size * step) > now + 1e-4 * size * float(slope @ step):
            size /= 2
        found = found + size * step
        if np.abs(size * step).max() < _DONE:
            break
    return np.asarray(common * np.exp(found @ share))
