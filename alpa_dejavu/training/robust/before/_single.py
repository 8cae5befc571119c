"""Preparations of each replica by itself."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import jax
import jax.numpy as jnp

from alpa_dejavu.problem import checks
from alpa_dejavu.training.robust._arrays import column, finite_rows, middle, norms
from alpa_dejavu.training.robust.before._base import Preparation

__all__ = ["Clipping", "Noise", "WorkerMomentum"]


@final
@dataclasses.dataclass(frozen=True)
class Clipping(Preparation):
    """Gradients that are longer than a norm are scaled down to it.

    Attributes:
        norm: the longest that there may be; None: the median of the replicas'.
    """

    norm: float | None = None

    def prepare(self, gradients: Any, state: Any = None) -> tuple[Any, Any]:
        """Returns the clipped gradients."""
        size = norms(gradients)
        most = middle(size, jnp.isfinite(size)) if self.norm is None else self.norm
        scale = jnp.where(size > most, most / size, 1)
        return jax.tree_util.tree_map(lambda x: x * column(scale, x).astype(x.dtype), gradients), ()


@final
@dataclasses.dataclass(frozen=True)
class WorkerMomentum(Preparation):
    """A moving average of each replica's gradients, beginning at zero: momentum <- decay momentum + (1 - decay) g.

    A gradient that isn't finite doesn't enter it, but its replica isn't finite in that step.

    Attributes:
        decay: how much of the last average stays.

    References:
        Karimireddy, He and Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021.
    """

    decay: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"worker momentum: decay is {self.decay}, but must be at least 0 and below 1; give a "
                             "share")  # fmt: skip

    def prepare(self, gradients: Any, state: Any = None) -> tuple[Any, Any]:
        """Returns the averages."""
        old = jax.tree_util.tree_map(jnp.zeros_like, gradients) if state is None else state
        valid = finite_rows(gradients)
        kept = jax.tree_util.tree_map(
            lambda m, g: jnp.where(column(valid, g), self.decay * m + (1 - self.decay) * g, m), old, gradients
        )
        shown = jax.tree_util.tree_map(lambda m: jnp.where(column(valid, m), m, jnp.nan), kept)
        return shown, kept


@final
@dataclasses.dataclass(frozen=True)
class Noise(Preparation):
    """Symmetric normal noise is added to each replica: with it a median, or a vote of signs, comes near to the mean.

    Attributes:
        deviation: its standard deviation in each coordinate.
        seed: of the noise.

    References:
        Chen, Chen, Sun, Wu and Hong, Distributed Training with Heterogeneous Data: Bridging Median- and Mean-Based
        Algorithms, 2019 (1906.01736).
    """

    deviation: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        checks.not_negative("noise", "deviation", self.deviation)

    def prepare(self, gradients: Any, state: Any = None) -> tuple[Any, Any]:
        """Returns the gradients with noise; the state counts the calls."""
        step = jnp.zeros((), jnp.int32) if state is None else state
        leaves, tree = jax.tree_util.tree_flatten(gradients)
        keys = jax.random.split(jax.random.fold_in(jax.random.PRNGKey(self.seed), step), len(leaves))
        noisy = [x + self.deviation * jax.random.normal(key, x.shape, x.dtype)
                 for key, x in zip(keys, leaves, strict=True)]  # fmt: skip
        return jax.tree_util.tree_unflatten(tree, noisy), step + 1
