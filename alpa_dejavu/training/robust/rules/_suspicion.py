"""Suspicion weights: a replica counts the less, the farther it is from the others."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import jax.numpy as jnp

from alpa_dejavu.training.robust._arrays import (
    diagonal,
    distances,
    finite_rows,
    mean_of,
    median_of,
    middle,
    products_around,
    total,
    weighted,
)
from alpa_dejavu.training.robust.rules._base import Aggregated, Evidence, Rule, check_replicas
from alpa_dejavu.training.robust.rules._distances import lowest

__all__ = ["SketchedSuspicion", "Suspicion"]


@final
@dataclasses.dataclass(frozen=True)
class SketchedSuspicion(Rule):
    """The first sketch of suspicion weights, as it was written: alpha / (alpha + distance to the mean), not normalised.

    The `wrong` replicas of least weight are replaced by the mean of the others, and the gradient is the sum by weights.
    It is kept to be compared with: the weights' sum, and so the learning rate, changes with the distances, and with a
    share q of attackers at a distance D it finds them only if D > sigma / sqrt(1 - 2 q). Weights begin anew at 1 / N
    in each step.

    Attributes:
        wrong: how many are replaced.
        alpha: the distance at which a weight is a half.
    """

    wrong: int = 1
    alpha: float = 1.0

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
        """Returns the sum by weights."""
        check_replicas("sketched-suspicion", gradients, self.wrong, self.wrong + 1, "N > wrong")
        valid = finite_rows(gradients)
        far = distances(gradients, mean_of(gradients, valid), valid)
        weights = jnp.where(valid, self.alpha / (self.alpha + far), 0)
        kept = lowest(far, len(valid) - self.wrong) & valid  # weights of huge distances are all 0
        # A replaced gradient keeps its weight: the others' mean has it beside their own.
        shares = jnp.where(kept, weights + jnp.sum(jnp.where(kept, 0, weights)) / jnp.maximum(jnp.sum(kept), 1), 0)
        return Aggregated(weighted(gradients, shares), shares, ())


@final
@dataclasses.dataclass(frozen=True)
class Suspicion(Rule):
    """Suspicion weights that work: normalised, alpha by the median distance, iterated from the median.

    It begins at the median of each coordinate. Weights are 1 / (1 + (distance / alpha)²) with alpha the median of the
    distances, the `wrong` least of them count as 0, their sum is 1, and the gradient by weights is the next centre.

    Attributes:
        wrong: how many replicas of least weight have none.
        steps: how often it is repeated.
    """

    wrong: int = 0
    steps: int = 2

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
        """Returns the sum by weights."""
        n = check_replicas("suspicion", gradients, self.wrong, 2 * self.wrong + 1, "N > 2 wrong")
        valid = finite_rows(gradients)
        # All distances are known from the products around the first centre: gradients are sent for once.
        products, unit = products_around(gradients, median_of(gradients, valid), valid)
        squares = diagonal(products)
        near = valid & jnp.isfinite(squares)
        products = jnp.where(near[:, None] & near[None, :], products, 0)
        weights, far = jnp.zeros(n), _root(squares, near)
        for _ in range(self.steps):
            alpha = jnp.maximum(middle(far, near), jnp.finfo(far.dtype).tiny)
            weights = jnp.where(lowest(far, n - self.wrong) & near, 1 / (1 + jnp.square(far / alpha)), 0)
            weights = weights / jnp.maximum(total(weights), jnp.finfo(far.dtype).tiny)
            moved = products * weights[None, :]  # of the centre by weights: its product with each, then with itself
            along = jnp.sum(moved, axis=1)
            far = _root(diagonal(products) - 2 * along + total(weights * along), near)
        return Aggregated(weighted(gradients, weights), weights, (), unit * far)


def _root(squares: Any, near: Any) -> Any:
    return jnp.where(near, jnp.sqrt(jnp.maximum(squares, 0)), jnp.inf)
