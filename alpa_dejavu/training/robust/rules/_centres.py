"""Rules that come to a centre by steps: the geometric median and centered clipping."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import jax
import jax.numpy as jnp

from alpa_dejavu.training.robust._arrays import cleared, column, distances, finite_rows, median_of, middle, weighted
from alpa_dejavu.training.robust.rules._base import Aggregated, Evidence, Rule, check_replicas

__all__ = ["CenteredClipping", "GeometricMedian"]


@final
@dataclasses.dataclass(frozen=True)
class GeometricMedian(Rule):
    """The point whose distances to all replicas have the smallest sum, by smoothed Weiszfeld steps.

    Attributes:
        smoothing: distances below this share of the median one count as the share.
        steps: how many steps are taken.
        from_zero: whether they begin at zero, as in ByzFL, where they stay if some replicas send zeros; else they begin
            at the median of each coordinate.

    References:
        Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, IEEE TSP 2022.
    """

    smoothing: float = 1e-6
    steps: int = 8
    from_zero: bool = False

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
        """Returns the point."""
        check_replicas("geometric-median", gradients, 0, 1, "N > 0")
        valid = finite_rows(gradients)
        centre = _zeros(gradients) if self.from_zero else median_of(gradients, valid)
        weights = jnp.zeros(len(valid))
        for _ in range(self.steps):
            far = distances(gradients, centre, valid)
            scale = jnp.maximum(middle(far, valid), jnp.finfo(far.dtype).tiny)
            near = jnp.where(jnp.isfinite(far), 1 / jnp.maximum(far / scale, self.smoothing), 0)
            weights = near / jnp.maximum(jnp.sum(near), 1)
            centre = weighted(gradients, weights)
        return Aggregated(centre, weights, ())


@final
@dataclasses.dataclass(frozen=True)
class CenteredClipping(Rule):
    """The last step's result plus the mean of the replicas' differences from it, each clipped to a radius.

    Attributes:
        radius: how long a difference may be; None: the median of their lengths.
        steps: how often it is repeated.

    References:
        Karimireddy, He and Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021.
    """

    radius: float | None = None
    steps: int = 1

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
        """Returns the clipped mean, which is the state as well."""
        check_replicas("centered-clipping", gradients, 0, 1, "N > 0")
        valid = finite_rows(gradients)
        clean, there = cleared(gradients, valid), jnp.maximum(jnp.sum(valid), 1)
        centre = _zeros(gradients) if state is None else state
        share = valid / there
        for _ in range(self.steps):
            far = distances(gradients, centre, valid)
            radius = middle(far, valid) if self.radius is None else self.radius
            share = jnp.where(valid, jnp.minimum(1, radius / jnp.maximum(far, jnp.finfo(far.dtype).tiny)), 0) / there
            centre = jax.tree_util.tree_map(_moved(share), centre, clean)
        return Aggregated(centre, share / jnp.maximum(jnp.sum(share), jnp.finfo(share.dtype).tiny), centre)


def _moved(share: Any) -> Any:
    return lambda c, x: c + jnp.sum(column(share, x) * jnp.where(column(share, x) > 0, x - c, 0), axis=0)


def _zeros(gradients: Any) -> Any:
    return jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape[1:], x.dtype), gradients)
