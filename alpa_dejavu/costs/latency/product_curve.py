"""The curve by which a device's measured products differ from what its rate says of them."""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray as Array

_CENTRE_FLOP = 1e11


@final
@dataclasses.dataclass(frozen=True)
class ProductCurve:
    """A correction of predicted seconds of matrix products by their size.

    Measured over predicted is exp(level + slope x + bend x²), with x = log10(flop / 1e11).

    Attributes:
        level, slope, bend: the fitted coefficients.
        least_flop, most_flop: the operations of the smallest and of the largest product that it was fitted to; smaller
            and larger ones are corrected as these two are.
    """

    level: float
    slope: float
    bend: float
    least_flop: float
    most_flop: float

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in dataclasses.astuple(self)):
            raise ValueError(f"curve of products: {self} has a figure that isn't finite; fit it again")
        if not 0 < self.least_flop <= self.most_flop:
            raise ValueError(f"curve of products: least_flop is {self.least_flop}, most_flop {self.most_flop}")

    @classmethod
    def fit(cls, flop: Array, ratio: Array) -> ProductCurve:
        """Fits the curve to ratios of measured to predicted seconds of products of at least three sizes, by least
        squares of logarithms.

        >>> curve = ProductCurve.fit(np.array([1e10, 1e11, 1e12]), np.array([2.0, 1.0, 2.0]))
        >>> curve.factor(np.array([1e9, 1e11])).round(6).tolist()
        [2.0, 1.0]
        """
        bend, slope, level = np.polyfit(np.log10(flop / _CENTRE_FLOP), np.log(ratio), 2).tolist()
        return cls(level, slope, bend, float(flop.min()), float(flop.max()))

    @classmethod
    def left_out_errors(cls, flop: Array, ratio: Array) -> Array:
        """Returns for each of at least four products the logarithm of its ratio over what a curve says that is fitted
        to all others.
        """
        found = np.zeros(len(flop))
        for n in range(len(flop)):
            others = np.arange(len(flop)) != n
            found[n] = np.log(ratio[n] / cls.fit(flop[others], ratio[others]).factor(flop[n : n + 1])[0])
        return found

    def factor(self, flop: Array) -> Array:
        """Returns the factor by which predicted seconds of products of so many FLOP are multiplied."""
        x = np.log10(np.clip(flop, self.least_flop, self.most_flop) / _CENTRE_FLOP)
        return np.asarray(np.exp(self.level + self.slope * x + self.bend * x**2))
