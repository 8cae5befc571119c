"""Kernels: how alike the gradients of two points are, by how far the points are apart.

In: squared distances between points, and those from a point of reference, both over the squared length scale.
Out: covariances, by a kernel of `KERNELS`, each with one method.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, TypeAlias, final

import jax.numpy as jnp

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    Pairs: TypeAlias = Float[Array, "..."]

__all__ = ["KERNELS", "RBF", "DotProduct", "Kernel", "Matern12", "Matern32", "Matern52", "kernel"]


class Kernel(abc.ABC):
    """A covariance of two gradients, the same for each of their coordinates."""

    @abc.abstractmethod
    def covariance(self, between: Pairs, left: Pairs, right: Pairs) -> Pairs:
        """Returns the covariances of pairs of points, by the squared distance between the two, and that of
        each from the point of reference, which broadcast; all over the squared length scale.
        """


@final
@dataclasses.dataclass(frozen=True)
class RBF(Kernel):
    """The squared exponential, exp(-r²/2): gradients change as smoothly as can be."""

    def covariance(self, between: Pairs, left: Pairs, right: Pairs) -> Pairs:
        return jnp.exp(-between / 2)


@final
@dataclasses.dataclass(frozen=True)
class Matern12(Kernel):
    """The exponential, exp(-r): gradients are continuous, and have no derivative."""

    def covariance(self, between: Pairs, left: Pairs, right: Pairs) -> Pairs:
        return jnp.exp(-jnp.sqrt(between))


@final
@dataclasses.dataclass(frozen=True)
class Matern32(Kernel):
    """Gradients have one derivative: (1 + √3 r) exp(-√3 r)."""

    def covariance(self, between: Pairs, left: Pairs, right: Pairs) -> Pairs:
        r = jnp.sqrt(3 * between)
        return (1 + r) * jnp.exp(-r)


@final
@dataclasses.dataclass(frozen=True)
class Matern52(Kernel):
    """Gradients have two derivatives: (1 + √5 r + 5/3 r²) exp(-√5 r)."""

    def covariance(self, between: Pairs, left: Pairs, right: Pairs) -> Pairs:
        r = jnp.sqrt(5 * between)
        return (1 + r + r**2 / 3) * jnp.exp(-r)


@final
@dataclasses.dataclass(frozen=True)
class DotProduct(Kernel):
    """Gradients are affine in the parameters, as those of a quadratic are: <x, y> + bias, which is the variance
    of the gradient at the point of reference.

    Products are those of differences from the point of reference: in exact numbers the estimate is the same for each,
    where points determine it.
    """

    bias: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("dot product", "bias", self.bias)

    def covariance(self, between: Pairs, left: Pairs, right: Pairs) -> Pairs:
        return (left + right - between) / 2 + self.bias


KERNELS: dict[str, type[Kernel]] = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "dot-product": DotProduct,
}
"""The kernels by name, frozen dataclasses."""


def kernel(choice: str | Kernel) -> Kernel:
    """Returns the kernel of a name of `KERNELS`, or the given one.

    >>> kernel("dot-product")
    DotProduct(bias=1.0)
    """
    return resolve("kernel", choice, KERNELS, Kernel)  # type: ignore[type-abstract]
