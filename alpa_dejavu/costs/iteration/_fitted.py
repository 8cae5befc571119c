"""A fitted physical model, and what it predicts: the spread grows where nothing was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from alpa_dejavu.costs.iteration._hierarchical import Array, Physics, Rows

SOURCE = "source"
"""The column that tells measurements apart that have noise of their own (clusters, frameworks). It may be missing."""
_STEP = 1e-4


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Fitted:
    """A physical model whose parameters and deviations are known, with their covariance.

    Attributes:
        physics: the model.
        estimate: logarithms of the parameters, then the deviations of each kind's programs, one kind after the other.
        covariance: of the estimate, shape (K, K).
        programs: of each kind of deviation, the programs that were measured.
        noise: of each source, the standard deviation of one measurement's logarithm.
        widening: of each source, what the spread must be multiplied with to hold on groups that were left out.
        num_measured: how many rows it was fitted on.
        num_groups: in how many groups.
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
        """Returns the parameters by name, in their units."""
        return parameter_values(self.physics, self.estimate)

    def predict(self, rows: Rows) -> tuple[Array, Array]:
        """Mean and standard deviation of the logarithm of each row, both of shape (N,)."""
        weights, unknown = self._known_share(rows)
        mean, jacobian, slopes = linearised(self.physics, self.estimate, weights, rows)
        variance = np.einsum("ij,jk,ik->i", jacobian, self.covariance, jacobian)
        for slope, more in zip(slopes, unknown, strict=True):
            variance = variance + slope**2 * more
        origin = sources(rows, len(mean))
        variance = np.maximum(variance, 0.0) + of_source(self.noise, origin) ** 2
        return mean, np.sqrt(variance) * of_source(self.widening, origin)

    def draw(self, rows: Rows, count: int, rng: np.random.Generator) -> Array:
        """Joint draws of the logarithms, shape (count, N): rows that share parameters or programs are off together.

        Args:
            rows: N of them.
            count: how many draws.
            rng: where chance comes from.
        """
        weights, _ = self._known_share(rows)
        mean, jacobian, slopes = linearised(self.physics, self.estimate, weights, rows)
        widening = of_source(self.widening, sources(rows, len(mean)))
        off = rng.standard_normal((count, len(self.estimate))) @ _root(self.covariance).T @ jacobian.T
        for kind, known, share, slope in zip(self.physics.deviations, self.programs, weights, slopes, strict=True):
            wanted, place = np.unique(kind.programs(rows), axis=0, return_inverse=True)
            first = np.unique(place.ravel(), return_index=True)[1]
            left = kind.covariance(wanted, wanted) - share[first] @ kind.covariance(known, wanted)
            unknown = rng.standard_normal((count, len(wanted))) @ _root(left).T
            off += unknown[:, place.ravel()] * slope
        return np.asarray(mean + off * widening)

    def deviation(self, rows: Rows) -> dict[str, Array]:
        """The mean deviation of each kind, of each row's program, each of shape (N,)."""
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


def _root(covariance: Array) -> Array:
    """A matrix whose product with its transpose is the covariance."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def parameter_values(physics: Physics, estimate: Array) -> dict[str, float]:
    """The parameters by name, in their units."""
    logs = estimate[: len(physics.parameters)]
    return {parameter.name: float(np.exp(log)) for parameter, log in zip(physics.parameters, logs, strict=True)}


def linearised(
    physics: Physics, estimate: Array, weights: Sequence[Array], rows: Rows
) -> tuple[Array, Array, list[Array]]:
    """The prediction, its derivative by the estimate, and by each kind of deviation, row by row."""
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
    """A covariance that can be inverted."""
    return covariance + 1e-9 * np.eye(len(covariance))


def sources(rows: Rows, count: int) -> Array:
    """Returns the source of each row, shape (N,); 0 where the rows have none."""
    return np.asarray(rows[SOURCE]) if SOURCE in rows else np.zeros(count)


def of_source(known: Mapping[float, float], origin: Array) -> Array:
    """A figure of each row's source; of one that was never seen, the largest."""
    most = max(known.values())
    return np.array([known.get(float(each), most) for each in origin])
