"""Rules of coordinates, and those that come to a centre by steps."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, ClassVar, final

import jax
import jax.numpy as jnp

from alpa_dejavu.training.robust._arrays import (
    cleared,
    column,
    diagonal,
    distances,
    finite_rows,
    mean_of,
    mean_of_ranks,
    median_of,
    middle,
    products_around,
    ranks_of_rows,
    total,
    weighted,
)
from alpa_dejavu.training.robust.rules._base import Aggregated, Evidence, Rule, check_replicas
from alpa_dejavu.training.robust.rules._distances import lowest

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PyTree

    from alpa_dejavu.training.robust._arrays import Each, Gradient, Gradients, Rows, Which


class _OfCoordinates(Rule):
    """Rules in which replicas that are finite have equal shares, as each coordinate may come from other ones."""

    name: ClassVar[str]

    def aggregate(self, gradients: Gradients, state: PyTree = None, evidence: Evidence | None = None) -> Aggregated:
        wrong = getattr(self, "wrong", 0)
        check_replicas(self.name, gradients, wrong, 2 * wrong + 1, "N > 2 wrong")
        valid = finite_rows(gradients)
        return Aggregated(self._gradient(gradients, valid), valid / jnp.maximum(jnp.sum(valid), 1), ())

    @abc.abstractmethod
    def _gradient(self, gradients: Gradients, valid: Which) -> Gradient:
        """Returns one gradient of those of the replicas that are finite."""


@final
@dataclasses.dataclass(frozen=True)
class Mean(_OfCoordinates):
    """The mean of all replicas that are finite: no protection, the baseline."""

    name = "mean"

    def _gradient(self, gradients: Gradients, valid: Which) -> Gradient:
        return mean_of(gradients, valid)


@final
@dataclasses.dataclass(frozen=True)
class Median(_OfCoordinates):
    """The median of each coordinate.

    References:
        Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning, ICML 2018.
    """

    name = "median"

    def _gradient(self, gradients: Gradients, valid: Which) -> Gradient:
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

    def _gradient(self, gradients: Gradients, valid: Which) -> Gradient:
        n = jnp.sum(valid)
        trimmed = jnp.clip(self.wrong - jnp.sum(~valid), 0, jnp.maximum(n - 1, 0) // 2)
        return jax.tree.map(lambda x: mean_of_ranks(x, ranks_of_rows(x, valid), trimmed, n - trimmed), gradients)


@final
@dataclasses.dataclass(frozen=True)
class Meamed(_OfCoordinates):
    """The mean of the N - `wrong` values of each coordinate that are nearest to its median.

    References:
        Xie, Koyejo and Gupta, Generalized Byzantine-tolerant SGD, 2018.
    """

    name = "meamed"
    wrong: int = 1

    def _gradient(self, gradients: Gradients, valid: Which) -> Gradient:
        num_valid = jnp.sum(valid)
        kept = jnp.clip(len(valid) - self.wrong, jnp.minimum(num_valid, 1), num_valid)

        def mean_near(x: Rows) -> Float[Array, " ..."]:
            apart = jnp.abs(x / 2 - median_of(x, valid) / 2)  # whole differences could overflow
            return mean_of_ranks(x, ranks_of_rows(apart, valid), 0, kept)

        return jax.tree.map(mean_near, gradients)


@final
@dataclasses.dataclass(frozen=True)
class Sign(_OfCoordinates):
    """The sign that most replicas have of each coordinate, times a size: sign descent with a vote.

    References:
        Bernstein, Zhao, Azizzadenesheli and Anandkumar, signSGD with Majority Vote, ICLR 2019.
    """

    name = "sign"
    size: float = 1.0

    def _gradient(self, gradients: Gradients, valid: Which) -> Gradient:
        votes = mean_of(jax.tree.map(jnp.sign, gradients), valid)
        return jax.tree.map(lambda x: self.size * jnp.sign(x), votes)


@final
@dataclasses.dataclass(frozen=True)
class GeometricMedian(Rule):
    """The point whose distances to all replicas have the smallest sum, by smoothed Weiszfeld steps.

    Attributes:
        smoothing: distances below this share of the median one count as the share.
        from_zero: whether they begin at zero, as in ByzFL, where they stay if some replicas send zeros; else they begin
            at the median of each coordinate.

    References:
        Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, IEEE TSP 2022.
    """

    smoothing: float = 1e-6
    steps: int = 8
    from_zero: bool = False

    def aggregate(self, gradients: Gradients, state: PyTree = None, evidence: Evidence | None = None) -> Aggregated:
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

    References:
        Karimireddy, He and Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021.
    """

    radius: float | None = None
    steps: int = 1

    def aggregate(self, gradients: Gradients, state: PyTree = None, evidence: Evidence | None = None) -> Aggregated:
        """Returns the clipped mean, which is the state as well."""
        check_replicas("centered-clipping", gradients, 0, 1, "N > 0")
        valid = finite_rows(gradients)
        clean, right = cleared(gradients, valid), jnp.maximum(jnp.sum(valid), 1)
        centre = _zeros(gradients) if state is None else state
        share = valid / right
        for _ in range(self.steps):
            far = distances(gradients, centre, valid)
            radius = middle(far, valid) if self.radius is None else self.radius
            share = jnp.where(valid, jnp.minimum(1, radius / jnp.maximum(far, jnp.finfo(far.dtype).tiny)), 0) / right
            centre = jax.tree.map(
                lambda c, x, s=share: c + jnp.sum(column(s, x) * jnp.where(column(s, x) > 0, x - c, 0), axis=0),
                centre, clean,
            )  # fmt: skip
        return Aggregated(centre, share / jnp.maximum(jnp.sum(share), jnp.finfo(share.dtype).tiny), centre)


def _zeros(gradients: Gradients) -> Gradient:
    return jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), gradients)


@final
@dataclasses.dataclass(frozen=True)
class SketchedSuspicion(Rule):
    """The first sketch of suspicion weights, as it was written: alpha / (alpha + distance to the mean), not
    normalised.

    The `wrong` replicas of least weight are replaced by the mean of the others, and the gradient is the sum by weights.
    It is kept to be compared with: the weights' sum, and so the learning rate, changes with the distances, and with a
    share q of attackers at a distance D it finds them only if D > sigma / sqrt(1 - 2 q). Weights begin anew at 1 / N
    in each step.
    """

    wrong: int = 1
    alpha: float = 1.0

    def aggregate(self, gradients: Gradients, state: PyTree = None, evidence: Evidence | None = None) -> Aggregated:
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

    It begins at the median of each coordinate. In each of some steps weights are 1 / (1 + (distance / alpha)²) with
    alpha the median of the distances, the `wrong` least of them count as 0, their sum is 1, and the gradient by weights
    is the next centre.
    """

    wrong: int = 0
    steps: int = 2

    def aggregate(self, gradients: Gradients, state: PyTree = None, evidence: Evidence | None = None) -> Aggregated:
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


def _root(squares: Each, near: Which) -> Each:
    return jnp.where(near, jnp.sqrt(jnp.maximum(squares, 0)), jnp.inf)
