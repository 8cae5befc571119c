"""Preparations that mix replicas: means of nearest neighbours, and of drawn buckets."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import jax
import jax.numpy as jnp

from alpa_dejavu.problem import checks
from alpa_dejavu.training.robust._arrays import column, count, finite_rows, ranks, squared_distances
from alpa_dejavu.training.robust.before._base import Preparation

__all__ = ["Bucketing", "NearestNeighbours"]


@final
@dataclasses.dataclass(frozen=True)
class NearestNeighbours(Preparation):
    """Each replica's gradient becomes the mean of the N - `wrong` ones that are nearest to it (NNM).

    Attributes:
        wrong: how many replicas may be wrong.

    References:
        Allouah and others, Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023.
    """

    wrong: int = 1

    def prepare(self, gradients: Any, state: Any = None) -> tuple[Any, Any]:
        """Returns the means."""
        n = count(gradients)
        if not 0 <= self.wrong < n:
            raise ValueError(f"nearest neighbours: wrong is {self.wrong}, but must be of 0..{n - 1}; there are {n} "
                             "replicas")  # fmt: skip
        valid = finite_rows(gradients)
        apart = squared_distances(gradients, valid)
        near = (ranks(apart) < n - self.wrong) & valid[None, :]
        shares = near / jnp.maximum(jnp.sum(near, axis=1, keepdims=True), 1)

        def mixed(x: Any) -> Any:
            clean = jnp.where(column(valid, x), x, 0).reshape(n, -1)
            return jnp.where(column(valid, x), (shares.astype(x.dtype) @ clean).reshape(x.shape), jnp.nan)

        return jax.tree_util.tree_map(mixed, gradients), ()


@final
@dataclasses.dataclass(frozen=True)
class Bucketing(Preparation):
    """Replicas are put into buckets by chance, and each bucket becomes its mean; the last one may have fewer.

    A bucket with a replica that isn't finite isn't finite.

    Attributes:
        size: how many replicas are in a bucket.
        seed: of the chance.

    References:
        Karimireddy, He and Jaggi, Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022.
    """

    size: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        checks.count("bucketing", "size", self.size)

    def prepare(self, gradients: Any, state: Any = None) -> tuple[Any, Any]:
        """Returns the buckets' means; the state counts the calls."""
        n = count(gradients)
        step = jnp.zeros((), jnp.int32) if state is None else state
        order = jax.random.permutation(jax.random.fold_in(jax.random.PRNGKey(self.seed), step), n)
        starts = range(0, n, self.size)

        def means(x: Any) -> Any:
            shuffled = x[order]
            return jnp.stack([jnp.mean(shuffled[start : start + self.size], axis=0) for start in starts])

        return jax.tree_util.tree_map(means, gradients), step + 1
