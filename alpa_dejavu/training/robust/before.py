"""Preparations of the replicas' gradients before a rule: mixing, bucketing, clipping, momentum and noise.

In: gradients of N replicas, [N, ...]. Out: as many or fewer of them.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, final

import jax
import jax.numpy as jnp

from alpa_dejavu.problem import checks
from alpa_dejavu.training.robust._arrays import column, count, finite_rows, middle, norms, ranks, squared_distances

if TYPE_CHECKING:
    from jaxtyping import PyTree

    from alpa_dejavu.training.robust._arrays import Gradients, Rows

__all__ = ["BEFORE", "Bucketing", "Clipping", "NearestNeighbours", "Noise", "Preparation", "WorkerMomentum"]


class Preparation(abc.ABC):
    """A change of the replicas' gradients before a rule makes one of them.

    A replica of which a value isn't finite stays so, or leaves the others alone.
    """

    @abc.abstractmethod
    def prepare(self, gradients: Gradients, state: PyTree = None) -> tuple[Gradients, PyTree]:
        """Returns the prepared gradients, and the state for the next call; None is the first one's."""


@final
@dataclasses.dataclass(frozen=True)
class Clipping(Preparation):
    """Gradients that are longer than a norm are scaled down to it; None: to the median norm of the replicas'."""

    norm: float | None = None

    def prepare(self, gradients: Gradients, state: PyTree = None) -> tuple[Gradients, PyTree]:
        size = norms(gradients)
        most = middle(size, jnp.isfinite(size)) if self.norm is None else self.norm
        scale = jnp.where(size > most, most / size, 1)
        return jax.tree.map(lambda x: x * column(scale, x).astype(x.dtype), gradients), ()


@final
@dataclasses.dataclass(frozen=True)
class WorkerMomentum(Preparation):
    """A moving average of each replica's gradients, beginning at zero: momentum <- decay momentum + (1 - decay) g.

    A gradient that isn't finite doesn't enter it, but its replica isn't finite in that step.

    References:
        Karimireddy, He and Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021.
    """

    decay: float = 0.9

    def __post_init__(self) -> None:
        checks.share("worker momentum", "decay", self.decay)

    def prepare(self, gradients: Gradients, state: PyTree = None) -> tuple[Gradients, PyTree]:
        old = jax.tree.map(jnp.zeros_like, gradients) if state is None else state
        valid = finite_rows(gradients)
        kept = jax.tree.map(
            lambda m, g: jnp.where(column(valid, g), self.decay * m + (1 - self.decay) * g, m), old, gradients
        )
        shown = jax.tree.map(lambda m: jnp.where(column(valid, m), m, jnp.nan), kept)
        return shown, kept


@final
@dataclasses.dataclass(frozen=True)
class Noise(Preparation):
    """Symmetric normal noise of a standard deviation is added to each replica's coordinates: with it a median, or a
    vote of signs, comes near to the mean.

    References:
        Chen, Chen, Sun, Wu and Hong, Distributed Training with Heterogeneous Data: Bridging Median- and Mean-Based
        Algorithms, 2019 (1906.01736).
    """

    deviation: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        checks.not_negative("noise", "deviation", self.deviation)

    def prepare(self, gradients: Gradients, state: PyTree = None) -> tuple[Gradients, PyTree]:
        step = jnp.zeros((), jnp.int32) if state is None else state
        leaves, tree = jax.tree.flatten(gradients)
        keys = jax.random.split(jax.random.fold_in(jax.random.PRNGKey(self.seed), step), len(leaves))
        noisy = [x + self.deviation * jax.random.normal(key, x.shape, x.dtype)
                 for key, x in zip(keys, leaves, strict=True)]  # fmt: skip
        return jax.tree.unflatten(tree, noisy), step + 1


@final
@dataclasses.dataclass(frozen=True)
class NearestNeighbours(Preparation):
    """Each replica's gradient becomes the mean of the N - `wrong` ones that are nearest to it (NNM).

    References:
        Allouah and others, Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023.
    """

    wrong: int = 1

    def prepare(self, gradients: Gradients, state: PyTree = None) -> tuple[Gradients, PyTree]:
        n = count(gradients)
        if not 0 <= self.wrong < n:
            raise ValueError(f"nearest neighbours: wrong is {self.wrong}, but must be of 0..{n - 1}; there are {n} "
                             "replicas")  # fmt: skip
        valid = finite_rows(gradients)
        apart = squared_distances(gradients, valid)
        near = (ranks(apart) < n - self.wrong) & valid[None, :]
        shares = near / jnp.maximum(jnp.sum(near, axis=1, keepdims=True), 1)

        def mixed(x: Rows) -> Rows:
            clean = jnp.where(column(valid, x), x, 0).reshape(n, -1)
            return jnp.where(column(valid, x), (shares.astype(x.dtype) @ clean).reshape(x.shape), jnp.nan)

        return jax.tree.map(mixed, gradients), ()


@final
@dataclasses.dataclass(frozen=True)
class Bucketing(Preparation):
    """Replicas are put into buckets of a size by chance, and each bucket becomes its mean; the last one may have
    fewer. A bucket with a replica that isn't finite isn't finite.

    References:
        Karimireddy, He and Jaggi, Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022.
    """

    size: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        checks.count("bucketing", "size", self.size)

    def prepare(self, gradients: Gradients, state: PyTree = None) -> tuple[Gradients, PyTree]:
        n = count(gradients)
        step = jnp.zeros((), jnp.int32) if state is None else state
        order = jax.random.permutation(jax.random.fold_in(jax.random.PRNGKey(self.seed), step), n)
        starts = range(0, n, self.size)

        def means(x: Rows) -> Rows:
            shuffled = x[order]
            return jnp.stack([jnp.mean(shuffled[start : start + self.size], axis=0) for start in starts])

        return jax.tree.map(means, gradients), step + 1


BEFORE: dict[str, type[Preparation]] = {
    "bucketing": Bucketing,
    "nearest-neighbours": NearestNeighbours,
    "clipping": Clipping,
    "momentum": WorkerMomentum,
    "noise": Noise,
}
"""The preparations by name, frozen dataclasses."""
