"""Rules that take each coordinate by itself: mean, median, trimmed mean, the mean around the median, and signs."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp

from alpa_dejavu.training.robust._arrays import finite_rows, mean_of, mean_of_ranks, median_of, ranks_of_rows
from alpa_dejavu.training.robust.rules._base import Aggregated, Evidence, Rule, check_replicas


class _OfCoordinates(Rule):
    """Rules in which replicas that are finite have equal shares, as each coordinate may come from other ones."""

    name: ClassVar[str]

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
        wrong = getattr(self, "wrong", 0)
        check_replicas(self.name, gradients, wrong, 2 * wrong + 1, "N > 2 wrong")
        valid = finite_rows(gradients)
        return Aggregated(self._gradient(gradients, valid), valid / jnp.maximum(jnp.sum(valid), 1), ())

    @abc.abstractmethod
    def _gradient(self, gradients: Any, valid: jax.Array) -> Any:
        """Returns one gradient of those of the replicas that are finite."""


@final
@dataclasses.dataclass(frozen=True)
class Mean(_OfCoordinates):
    """The mean of all replicas that are finite: no protection, the baseline."""

    name = "mean"

    def _gradient(self, gradients: Any, valid: jax.Array) -> Any:
        return mean_of(gradients, valid)


@final
@dataclasses.dataclass(frozen=True)
class Median(_OfCoordinates):
    """The median of each coordinate.

    References:
        Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning, ICML 2018.
    """

    name = "median"

    def _gradient(self, gradients: Any, valid: jax.Array) -> Any:
        return median_of(gradients, valid)


@final
@dataclasses.dataclass(frozen=True)
class TrimmedMean(_OfCoordinates):
    """The mean of each coordinate without its `wrong` smallest and `wrong` largest values.

    References:
        Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning, ICML 2018.
    """

    name = "trimmed-mean"
    wrong: int = 1

    def _gradient(self, gradients: Any, valid: jax.Array) -> Any:
        n = jnp.sum(valid)
        trimmed = jnp.clip(self.wrong - jnp.sum(~valid), 0, jnp.maximum(n - 1, 0) // 2)
        return jax.tree_util.tree_map(
            lambda x: mean_of_ranks(x, ranks_of_rows(x, valid), trimmed, n - trimmed), gradients
        )


@final
@dataclasses.dataclass(frozen=True)
class Meamed(_OfCoordinates):
    """The mean of the N - `wrong` values of each coordinate that are nearest to its median.

    References:
        Xie, Koyejo and Gupta, Generalized Byzantine-tolerant SGD, 2018.
    """

    name = "meamed"
    wrong: int = 1

    def _gradient(self, gradients: Any, valid: jax.Array) -> Any:
        num_valid = jnp.sum(valid)
        kept = jnp.clip(len(valid) - self.wrong, jnp.minimum(num_valid, 1), num_valid)

        def mean_near(x: Any) -> Any:
            apart = jnp.abs(x / 2 - median_of(x, valid) / 2)  # whole differences could overflow
            return mean_of_ranks(x, ranks_of_rows(apart, valid), 0, kept)

        return jax.tree_util.tree_map(mean_near, gradients)


@final
@dataclasses.dataclass(frozen=True)
class Sign(_OfCoordinates):
    """The sign that most replicas have of each coordinate: sign descent with a vote.

    Attributes:
        size: the absolute value of each coordinate of the result.

    References:
        Bernstein, Zhao, Azizzadenesheli and Anandkumar, signSGD with Majority Vote, ICLR 2019.
    """

    name = "sign"
    size: float = 1.0

    def _gradient(self, gradients: Any, valid: jax.Array) -> Any:
        votes = mean_of(jax.tree_util.tree_map(jnp.sign, gradients), valid)
        return jax.tree_util.tree_map(lambda x: self.size * jnp.sign(x), votes)
