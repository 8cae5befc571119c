"""The joint fit of kernel figures: each generation's are drawn to those of its family, and these to common ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar, final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from alpa_dejavu.costs.kernels import family

__all__ = ["Kernels", "Prior", "fit"]

Array = NDArray[np.float64]
Figures = TypeVar("Figures")
_FAMILIES = ("synchronous", "asynchronous")
_BETWEEN = 0.8
"""The spread of generations about their family, relative to that of families about what all have in common."""
_STEP = 1e-4
_MOST_STEPS = 60


@final
@dataclasses.dataclass(frozen=True)
class Prior:
    """A figure's distribution before any measurement.

    Attributes:
        value: its middle.
        spread: the standard deviation of its logarithm, or of a share its log odds, of what all generations have in
            common, and of families about that; 0: it isn't fitted.
        is_share: whether it lies between 0 and 1.
    """

    value: float
    spread: float
    is_share: bool = False

    def inward(self, value: float) -> float:
        """The figure as a number without bounds."""
        return float(np.log(value / (1 - value)) if self.is_share else np.log(value))

    def outward(self, number: float) -> float:
        """The figure that such a number stands for."""
        return float(1 / (1 + np.exp(-number)) if self.is_share else np.exp(number))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Kernels(Generic[Figures]):
    """The measured kernels of a GPU: its generation, what figures predict, and what was measured, shape (kernels,)."""

    generation: str
    seconds: Callable[[Figures], Array]
    measured_s: Array


def fit(
    kind: Callable[..., Figures], priors: Mapping[str, Prior], measured: Sequence[Kernels[Figures]], noise: float,
    apart: float = 1.0,
) -> dict[str, Figures]:  # fmt: skip
    """The figures of each generation that was measured, and of both families, measured or not.

    The least squares of the logarithms of predicted over measured seconds, in units of `noise`, and of how far figures
    are from those that they are drawn to, in units of their spread. Squares of more than one such unit count by their
    root: a kernel, or a generation, may be unlike all others.

    Args:
        noise: the standard deviation of what the model leaves open in a kernel's logarithm.
        apart: how far families are apart, relative to the spread of each figure.
    """
    free = [name for name, prior in priors.items() if prior.spread > 0]
    middle = np.array([priors[name].inward(priors[name].value) for name in free])
    spread = np.array([priors[name].spread for name in free])
    generations = list(dict.fromkeys(kernels.generation for kernels in measured))
    # The first group of figures is common to all, then one for each family, then one for each generation.
    above = [-1, *[0] * len(_FAMILIES), *(1 + _FAMILIES.index(family(name)) for name in generations)]
    place = {name: number for number, name in enumerate((*_FAMILIES, *generations), 1)}
    width, held = len(free), {name: prior.value for name, prior in priors.items() if prior.spread == 0}

    def figures(numbers: Array) -> Figures:
        return kind(**held, **{name: priors[name].outward(number) for name, number in zip(free, numbers, strict=True)})

    def off(kernels: Kernels[Figures], numbers: Array) -> Array:
        return np.asarray(np.log(kernels.seconds(figures(numbers)) / kernels.measured_s) / noise)

    drawn, drawn_jacobian = _drawn(above, middle, spread, apart)

    def errors(point: Array) -> Array:
        groups = point.reshape(-1, width)
        return np.concatenate([*(off(each, groups[place[each.generation]]) for each in measured), drawn(point)])

    def jacobian(point: Array) -> Array:
        groups, rows = point.reshape(-1, width), []
        for kernels in measured:
            group = place[kernels.generation]
            own = np.zeros((len(kernels.measured_s), len(point)))
            for column in range(width):
                step = _STEP * (np.arange(width) == column)
                ends = off(kernels, groups[group] + step) - off(kernels, groups[group] - step)
                own[:, group * width + column] = ends / (2 * _STEP)
            rows.append(own)
        return np.concatenate([*rows, drawn_jacobian])

    found = least_squares(
        errors, np.tile(middle, len(above)), jac=jacobian, loss="soft_l1", x_scale="jac", max_nfev=_MOST_STEPS
    )
    groups = found.x.reshape(-1, width)
    return {name: figures(groups[number]) for name, number in place.items()}


def _drawn(above: Sequence[int], middle: Array, spread: Array, apart: float) -> tuple[Callable[[Array], Array], Array]:
    """How far each group of figures is from the one above it, in units of their spread, and the derivatives."""
    width, count = len(middle), len(above)
    derivatives, aim = np.zeros((width * count, width * count)), np.zeros(width * count)
    for group, upper in enumerate(above):
        unit = spread * (1.0 if upper < 0 else apart if upper == 0 else _BETWEEN)
        rows = slice(group * width, (group + 1) * width)
        derivatives[rows, rows] = np.diag(1 / unit)
        if upper < 0:
            aim[rows] = middle / unit
        else:
            derivatives[rows, upper * width : (upper + 1) * width] = np.diag(-1 / unit)

    def drawn(point: Array) -> Array:
        return np.asarray(derivatives @ point - aim)

    return drawn, derivatives
