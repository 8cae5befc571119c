"""Kernels: how alike the gradients of two points are, by how far the points are apart.

In: squared distances between points, and those from a point of reference, both over the squared length scale.
Out: covariances, by a kernel of `KERNELS`, each with one method.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, final

import jax
import jax.numpy as jnp

from alpa_dejavu._util.near_names import near
from alpa_dejavu.problem import checks

__all__ = ["KERNELS", "RBF", "DotProduct", "Kernel", "Matern12", "Matern32", "Matern52", "kernel"]


class Kernel(abc.ABC):
    """A covariance of two gradients, the same for each of their coordinates."""

    @abc.abstractmethod
    def covariance(self, between: jax.Array, left: jax.Array, right: jax.Array) -> Any:
        """Returns the covariances of pairs of points.

        All distances are squared, and over the squared length scale.

        Args:
            between: the distance of the two points of each pair.
            left: the distance of each pair's first point from the point of reference, which broadcasts to `between`.
            right: that of its second point.
        """


class _OfDistance(Kernel):
    """Kernels of the distance r of both points alone."""

    def covariance(self, between: jax.Array, left: jax.Array, right: jax.Array) -> Any:
        """Returns the covariances, which don't depend on the point of reference."""
        return self._covariance(between)

    @abc.abstractmethod
    def _covariance(self, square: jax.Array) -> Any:
        """Returns the covariances of points whose squared distance is given."""


@final
@dataclasses.dataclass(frozen=True)
class RBF(_OfDistance):
    """The squared exponential, exp(-r²/2): gradients change as smoothly as can be."""

    def _covariance(self, square: jax.Array) -> Any:
        return jnp.exp(-square / 2)


@final
@dataclasses.dataclass(frozen=True)
class Matern12(_OfDistance):
    """The exponential, exp(-r): gradients are continuous, and have no derivative."""

    def _covariance(self, square: jax.Array) -> Any:
        return jnp.exp(-jnp.sqrt(square))


@final
@dataclasses.dataclass(frozen=True)
class Matern32(_OfDistance):
    """Gradients have one derivative: (1 + √3 r) exp(-√3 r)."""

    def _covariance(self, square: jax.Array) -> Any:
        r = jnp.sqrt(3 * square)
        return (1 + r) * jnp.exp(-r)


@final
@dataclasses.dataclass(frozen=True)
class Matern52(_OfDistance):
    """Gradients have two derivatives: (1 + √5 r + 5/3 r²) exp(-√5 r)."""

    def _covariance(self, square: jax.Array) -> Any:
        r = jnp.sqrt(5 * square)
        return (1 + r + r**2 / 3) * jnp.exp(-r)


@final
@dataclasses.dataclass(frozen=True)
class DotProduct(Kernel):
    """Gradients are affine in the parameters, as those of a quadratic are.

    Products are those of differences from the point of reference: in exact numbers the estimate is the same for each,
    where points determine it.

    Attributes:
        bias: the variance of the gradient at the point of reference.
    """

    bias: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("dot product", "bias", self.bias)

    def covariance(self, between: jax.Array, left: jax.Array, right: jax.Array) -> Any:
        """Returns <x, y> + bias."""
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

    Raises:
        ValueError: there is no kernel of that name.
        TypeError: what is given isn't a kernel.

    >>> kernel("dot-product")
    DotProduct(bias=1.0)
    """
    if isinstance(choice, str):
        if choice not in KERNELS:
            names = ", ".join(map(repr, KERNELS))
            raise ValueError(f"kernel is {choice!r}, but must be one of {names}{near(choice, KERNELS)}")
        return KERNELS[choice]()
    if not isinstance(choice, Kernel):
        raise TypeError(f"kernel is {choice!r}, but must be a name or a Kernel; give one of {', '.join(KERNELS)}")
    return choice
