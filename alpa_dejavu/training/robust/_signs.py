"""The signs by which a replica is suspicious: how far it is from the gradient of all, and whether it is against it."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax.numpy as jnp

from alpa_dejavu.training.robust._arrays import cleared, distances, finite_rows, middle
from alpa_dejavu.training.robust.rules import Aggregated

__all__ = ["agreement_of", "suspicion_of"]


def suspicion_of(gradients: Any, made: Aggregated) -> Any:
    """Returns each replica's distance to a rule's gradient over the median one, [N]; infinite where it isn't finite."""
    far = made.distances
    if far is None:
        far = distances(gradients, made.gradient, finite_rows(gradients))
    return jnp.where(far == 0, 0, far / middle(far, jnp.isfinite(far)))


def agreement_of(gradients: Any, made: Aggregated) -> Any:
    """Returns each replica's cosine with a rule's gradient less its own share in it, [N]; 0 where it isn't finite."""
    clean = cleared(gradients, finite_rows(gradients))

    def summed(products: list[Any]) -> Any:
        return functools.reduce(operator.add, [jnp.sum(p, axis=tuple(range(1, p.ndim))) for p in products])

    own = summed([x * x for x in clean])
    both = summed([x * c for x, c in zip(clean, made.gradient, strict=True)])
    whole = summed([(c * c)[None] for c in made.gradient])
    share = made.weights if made.weights.shape == own.shape else 0  # those of buckets are no replica's
    rest = whole - 2 * share * both + share**2 * own
    found = (both - share * own) / jnp.sqrt(own * jnp.maximum(rest, 0))
    return jnp.where(jnp.isfinite(found), jnp.clip(found, -1, 1), 0)
