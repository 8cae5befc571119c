"""The length scale, and the level of noise: given, by the median distance, or as suits the history best.

In: the distances of points and the products of their gradients.
Out: a length scale and a level of noise, by a scale of `SCALES`, each with one method.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, TypeAlias, final

import jax.numpy as jnp

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.problem import checks
from alpa_dejavu.training.optex._posterior import Seen, log_likelihood, of_each, unmended
from alpa_dejavu.training.optex.kernels import Kernel

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    Levels: TypeAlias = Float[Array, " levels"]
    Choice: TypeAlias = tuple[Float[Array, ""], Float[Array, ""]]

__all__ = ["SCALES", "Fixed", "Likelihood", "MedianDistance", "Scale", "scale"]

FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Length scales that are tried, over the median distance."""
_TIE = 1e-3
"""Candidates whose measures differ by no more than that part are taken for equal."""


class Scale(abc.ABC):
    """A way to find the length scale of a group."""

    @abc.abstractmethod
    def choose(self, kernel: Kernel, seen: Seen, noises: Levels) -> Choice:
        """Returns the length scale, and one of the levels of noise."""


@final
@dataclasses.dataclass(frozen=True)
class Fixed(Scale):
    """A given length scale, in the unit of the parameters, with the first level of noise."""

    value: float

    def __post_init__(self) -> None:
        checks.positive("fixed scale", "value", self.value)

    def choose(self, kernel: Kernel, seen: Seen, noises: Levels) -> Choice:
        return jnp.float32(self.value), noises[0]


@final
@dataclasses.dataclass(frozen=True)
class MedianDistance(Scale):
    """The median distance of the history's points times a factor, or 1 where no two differ, with the first noise."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("median scale", "factor", self.factor)

    def choose(self, kernel: Kernel, seen: Seen, noises: Levels) -> Choice:
        return self.factor * _median(seen), noises[0]


@final
@dataclasses.dataclass(frozen=True)
class Likelihood(Scale):
    """The length scale and noise of the greatest marginal likelihood, of some multiples of the median distance."""

    factors: tuple[float, ...] = FACTORS

    def choose(self, kernel: Kernel, seen: Seen, noises: Levels) -> Choice:
        def badness(scale: Float[Array, ""], noise: Float[Array, ""]) -> Float[Array, ""]:
            return -log_likelihood(unmended(kernel, seen, scale, noise), seen)

        scales = _median(seen) * jnp.asarray(self.factors, jnp.float32)
        measures = of_each(badness, jnp.tile(scales, len(noises)), jnp.repeat(noises, len(scales)))
        measures = jnp.where(jnp.isfinite(measures), measures, jnp.inf)
        # The first of nearly equal ones: of few points many are equal, and rounding must not choose among them.
        best = jnp.argmax(measures <= jnp.min(measures) + _TIE * jnp.maximum(jnp.abs(jnp.min(measures)), 1e-30))
        return scales[best % len(scales)], noises[best // len(scales)]


SCALES: dict[str, type[Scale]] = {"median": MedianDistance, "likelihood": Likelihood}
"""The scales by name, frozen dataclasses; a number is a fixed one."""


def scale(choice: str | float | Scale) -> Scale:
    """Returns the scale of a name of `SCALES`, the fixed one of a number, or the given one.

    >>> scale("median"), scale(0.1)
    (MedianDistance(factor=1.0), Fixed(value=0.1))
    """
    if isinstance(choice, (int, float)) and not isinstance(choice, bool):
        return Fixed(float(choice))
    named: str | Scale = choice  # type: ignore[assignment]  # resolve refuses others
    return resolve("scale", named, SCALES, Scale)  # type: ignore[type-abstract]


def _median(seen: Seen) -> Float[Array, ""]:
    pairs = seen.is_known[:, None] & seen.is_known & ~jnp.eye(len(seen.is_known), dtype=bool)
    median = jnp.nanmedian(jnp.where(pairs, jnp.sqrt(seen.distances), jnp.nan))
    return jnp.where(median > 0, median, 1.0)  # also where it is NaN
