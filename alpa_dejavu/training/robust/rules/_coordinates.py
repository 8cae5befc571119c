"""Rules that take each coordinate by itself: mean, median, trimmed mean, the mean around the median, and signs."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import jax
import jax.numpy as jnp

from alpa_dejavu.training.robust._arrays import finite_rows, mean_of, mean_of_ranks, median_of, ranks_of_rows
from alpa_dejavu.training.robust.rules._base import Aggregated, Evidence, Rule, check_replicas


@final
@dataclasses.dataclass(frozen=True)
class Mean(Rule):
    """The mean of all replicas that are finite: no protection, the baseline."""

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
        check_replicas("mean", gradients, 0, 1, "N > 0")
        valid = finite_rows(gradients)
        return Aggregated(mean_of(gradients, valid), _equal(valid), ())


@final
@dataclasses.dataclass(frozen=True)
class Median(Rule):
    """The median of each coordinate.

    References:
        Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning, ICML 2018.
    """

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
        check_replicas("median", gradients, 0, 1, "N > 0")
        valid = finite_rows(gradients)
        return Aggregated(median_of(gradients, valid), _equal(valid), ())


@final
@dataclasses.dataclass(frozen=True)
class TrimmedMean(Rule):
    """The mean of each coordinate without its `wrong` smallest and `wrong` largest values.

    References:
        Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning, ICML 2018.
    """

    wrong: int = 1

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
        check_replicas("trimmed-mean", gradients, self.wrong, 2 * self.wrong + 1, "N > 2 wrong")
        valid = finite_rows(gradients)
        n = jnp.sum(valid)
        trimmed = jnp.clip(self.wrong - jnp.sum(~valid), 0, jnp.maximum(n - 1, 0) // 2)
        gradient = jax.tree_util.tree_map(
            lambda x: mean_of_ranks(x, ranks_of_rows(x, valid), trimmed, n - trimmed), gradients
        )
        return Aggregated(gradient, _equal(valid), ())


@final
@dataclasses.dataclass(frozen=True)
class Meamed(Rule):
    """The mean of the N - `wrong` values of each coordinate that are nearest to its median.

    References:
        Xie, Koyejo and Gupta, Generalized Byzantine-tolerant SGD, 2018.
    """

    wrong: int = 1

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
        check_replicas("meamed", gradients, self.wrong, 2 * self.wrong + 1, "N > 2 wrong")
        valid = finite_rows(gradients)
        num_valid = jnp.sum(valid)
        kept = jnp.clip(len(valid) - self.wrong, jnp.minimum(num_valid, 1), num_valid)

        def one(x: Any) -> Any:
            apart = jnp.abs(x / 2 - median_of(x, valid) / 2)  # whole differences could overflow
            return mean_of_ranks(x, ranks_of_rows(apart, valid), 0, kept)

        return Aggregated(jax.tree_util.tree_map(one, gradients), _equal(valid), ())


@final
@dataclasses.dataclass(frozen=True)
class Sign(Rule):
    """The sign that most replicas have of each coordinate: sign descent with a vote.

    Attributes:
        size: the absolute value of each coordinate of the result.

    References:
        Bernstein, Zhao, Azizzadenesheli and Anandkumar, signSGD with Majority Vote, ICLR 2019.
    """

    size: float = 1.0

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
        check_replicas("sign", gradients, 0, 1, "N > 0")
        valid = finite_rows(gradients)
        votes = jax.tree_util.tree_map(jnp.sign, gradients)
        gradient = jax.tree_util.tree_map(lambda x: self.size * jnp.sign(x), mean_of(votes, valid))
        return Aggregated(gradient, _equal(valid), ())


def _equal(valid: jax.Array) -> Any:
    return valid / jnp.maximum(jnp.sum(valid), 1)
