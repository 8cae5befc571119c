"""A fitted physical model, and what it predicts: the spread grows where nothing was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from fitting._physics import Array, Physics, Rows

SOURCE = "source"
"""The column that tells measurements apart that have noise of their own (clusters, frameworks). It may be missing."""
_STEP = 1e-4


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Fitted:
    """A physical model with its fitted parameters and deviations, and their covariance.

    A deviation is what one program (such as a layer of one width, divided in one way) is off the model by.

    Attributes:
        physics: the physical model.
        estimate: logarithms of the parameters, then the deviations of each kind's programs, one kind after the other.
        covariance: the covariance of the K numbers of the estimate, shape (K, K).
        programs: for each kind of deviation, the features of the programs that were measured.
        noise: for each source (such as a cluster), the standard deviation of one measurement's logarithm.
        widening: for each source, the factor on predicted standard deviations with which they hold on groups that were
            left out.
        num_measured: how many rows (measurements) it was fitted on.
        num_groups: how many groups these rows were in.
    """

    physics: Physics
    estimate: Array
    covariance: Array
    programs: tuple[Array, ...]
    noise: Mapping[float, float]
    widening: Mapping[float, float]
    num_measured: int
    num_groups: int

    @property
    def values(self) -> dict[str, float]:
        """Returns the fitted parameters of the physical model of an iteration by name, such as rates and latencies."""
        return parameter_values(self.physics, self.estimate)

    def predict(self, rows: Rows) -> tuple[Array, Array]:
        """Returns the mean and the standard deviation of the predicted logarithm (of seconds or bytes) of each row,
        both of shape (N,).
        """
        weights, unknown = self._known_share(rows)
        mean, jacobian, slopes = linearised(self.physics, self.estimate, weights, rows)
        variance = np.einsum("ij,jk,ik->i", jacobian, self.covariance, jacobian)
        for slope, more in zip(slopes, unknown, strict=True):
            variance = variance + slope**2 * more
        origin = sources(rows, len(mean))
        variance = np.maximum(variance, 0.0) + of_source(self.noise, origin) ** 2
        return mean, np.sqrt(variance) * of_source(self.widening, origin)

    def deviation(self, rows: Rows) -> dict[str, Array]:
        """Returns, for each kind of deviation, the mean by which each row's program deviates from the physical model,
        in logarithms, shape (N,).
        """
        start, drawn = len(self.physics.parameters), {}
        for kind, weights in zip(self.physics.deviations, self._known_share(rows)[0], strict=True):
            drawn[kind.name] = weights @ self.estimate[start : start + weights.shape[1]]
            start += weights.shape[1]
        return drawn

    def _known_share(self, rows: Rows) -> tuple[list[Array], list[Array]]:
        """Returns for each kind how a row's deviation follows from the known ones, and the variance that they leave."""
        weights, unknown = [], []
        for kind, known in zip(self.physics.deviations, self.programs, strict=True):
            across = kind.covariance(kind.programs(rows), known)
            share = np.linalg.solve(with_jitter(kind.covariance(known, known)), across.T).T
            weights.append(share)
            unknown.append(np.maximum(kind.shared**2 + kind.own**2 - (share * across).sum(axis=1), 0.0))
        return weights, unknown


def parameter_values(physics: Physics, estimate: Array) -> dict[str, float]:
    """Returns a physical model's parameters by name, in their units, from the logarithms in an estimate."""
    logs = estimate[: len(physics.parameters)]
    return {parameter.name: float(np.exp(log)) for parameter, log in zip(physics.parameters, logs, strict=True)}


def linearised(
    physics: Physics, estimate: Array, weights: Sequence[Array], rows: Rows
) -> tuple[Array, Array, list[Array]]:
    """Returns a physical model's predicted logarithm for each row, shape (N,), its derivative by the K numbers of the
    estimate, shape (N, K), and its derivative by each kind of deviation, each of shape (N,).

    Args:
        physics: the physical model.
        estimate: the logarithms of its parameters, then the deviations of each kind's programs, shape (K,).
        weights: for each kind of deviation, the weights with which those of its programs add up to that of each row,
            shape (N, programs).
        rows: the columns of N rows that the model takes.
    """
    values, drawn, start = parameter_values(physics, estimate), {}, len(physics.parameters)
    for kind, share in zip(physics.deviations, weights, strict=True):
        drawn[kind.name] = share @ estimate[start : start + share.shape[1]]
        start += share.shape[1]
    mean = physics.log_value(values, drawn, rows)
    columns = []
    for parameter in physics.parameters:
        moved = {**values, parameter.name: values[parameter.name] * np.exp(_STEP)}
        columns.append(((physics.log_value(moved, drawn, rows) - mean) / _STEP)[:, None])
    slopes = []
    for kind, share in zip(physics.deviations, weights, strict=True):
        slope = (physics.log_value(values, {**drawn, kind.name: drawn[kind.name] + _STEP}, rows) - mean) / _STEP
        slopes.append(slope)
        columns.append(slope[:, None] * share)
    return mean, np.concatenate(columns, axis=1), slopes


def with_jitter(covariance: Array) -> Array:
    """Returns a covariance matrix with a little added to its diagonal, so that it can be inverted."""
    return covariance + 1e-9 * np.eye(len(covariance))


def sources(rows: Rows, count: int) -> Array:
    """Returns the number of the source of each measured row (such as its cluster), shape (N,); 0 where the rows name
    none.
    """
    return np.asarray(rows[SOURCE]) if SOURCE in rows else np.zeros(count)


def of_source(known: Mapping[float, float], origin: Array) -> Array:
    """Returns for each row the figure (such as the noise) of its source; the largest one for a source that was never
    seen.
    """
    most = max(known.values())
    return np.array([known.get(float(each), most) for each in origin])
