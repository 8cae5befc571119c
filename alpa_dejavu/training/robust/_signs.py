"""The signs by which a replica is suspicious: how far it is from the gradient of all, and whether it is against it."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax.numpy as jnp

from alpa_dejavu.training.robust._arrays import cleared, column, distances, finite_rows, middle, norms
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
    clean, whole = cleared(gradients, finite_rows(gradients)), [c[None] for c in made.gradient]
    size, most = norms(clean), norms(whole)
    both = functools.reduce(operator.add, [jnp.sum(_over(x, size) * _over(c, most), axis=tuple(range(1, x.ndim)))
                                           for x, c in zip(clean, whole, strict=True)])  # fmt: skip
    share = made.weights if made.weights.shape == size.shape else 0  # those of buckets are no replica's
    own = share * size  # the length of the replica's own part
    longer = jnp.maximum(own, most)
    own, most = own / longer, most / longer
    found = (most * both - own) / jnp.sqrt(jnp.maximum(most**2 - 2 * most * own * both + own**2, 0))
    return jnp.where(jnp.isfinite(found), jnp.clip(found, -1, 1), 0)


def _over(x: Any, lengths: Any) -> Any:
    """A leaf of gradients over their lengths; those of none are zeros."""
    return jnp.where(column(lengths, x) > 0, x / column(lengths, x), 0)
