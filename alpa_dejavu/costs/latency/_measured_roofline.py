"""The roofline on figures that were measured, with how far each of them may be off."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu.costs.latency._analytic import roofline_parts
from alpa_dejavu.costs.latency._base import Latency, LatencyModel
from alpa_dejavu.costs.latency.product_curve import ProductCurve
from alpa_dejavu.problem import Device, Operators

_UNMEASURED = math.log(2) / REACH_90
"""The spread of a figure that has none of its own: it is within a factor of two with 90 %."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredRoofline(LatencyModel):
    """A roofline latency model with spreads, from the measured uncertainty of the device's figures.

    If a figure, such as the memory's rate, is off, so are the seconds of all operators that it bounds.

    Attributes:
        spread: by `Device.name`, the standard deviation of the logarithm of each measured figure, by the name of
            `Device`'s field (of a rate by dtype "flop_per_s[float32]").
        own: the standard deviation of the logarithm by which an operator is off the roofline, however well the figures
            are known.
        spread_from: where the spread comes from, in a few words.
        products: by the name of a device, then of a dtype: how the seconds of matrix products measured on the device
            differ from those of their operations at the device's rate.
    """

    spread: Mapping[str, Mapping[str, float]]
    own: float
    spread_from: str
    products: Mapping[str, Mapping[str, ProductCurve]] = dataclasses.field(default_factory=dict)

    def predict(self, operators: Operators, device: Device) -> Latency:
        """Returns the roofline's seconds of each operator on a device, and their standard deviation (spread)."""
        parts = roofline_parts(operators, device)
        work_s, traffic_s, start_s, strided_s, uncached_s = parts
        for dtype, curve in self.products.get(device.name, {}).items():
            chosen = operators.is_product & (operators.dtype == dtype)
            work_s[chosen] *= curve.factor(np.maximum(operators.flop[chosen], 1.0))
        bound_s = np.maximum(work_s, traffic_s)
        once_s = parts.once_s
        memory, start, weights = (
            self.figure_spread(device, name) for name in ("memory_bytes_per_s", "kernel_s", "uncached_bytes_per_s")
        )
        of_bound = np.where(work_s >= traffic_s, self._of_work(operators, device), memory)
        of_strided = self._of_strided(operators, device)
        off_s = np.hypot.reduce([bound_s * of_bound, start_s * start, strided_s * of_strided, uncached_s * weights])
        relative = np.divide(off_s, once_s, out=np.zeros_like(once_s), where=once_s > 0)
        mean = once_s * operators.count
        return Latency(mean, mean * np.expm1(np.hypot(relative, self.own)))

    def common_share(self, operators: Operators, device: Device) -> NDArray[np.float64]:
        """Returns for each operator, on this device, the share of the variance of its latency error that all operators
        of its class (matrix products, or all others) have in common, shape (operators,).

        It comes from the figure that bounds most of the class: a device's rate of products, or that of its memory.
        """
        shares = [self._common_share(figure) for figure in ("memory_bytes_per_s", "flop_per_s[float32]")]
        return np.array(shares)[operators.is_product.astype(int)]

    def _common_share(self, figure: str) -> float:
        common = float(np.mean([known.get(figure, _UNMEASURED) ** 2 for known in self.spread.values()] or [0.0]))
        whole = common + self.own**2
        return common / whole if whole > 0 else 1.0

    def footing(self, operators: Operators, device: Device) -> NDArray[np.str_]:
        """Returns in a few words what the prediction of each operator on a device rests on, shape (operators,)."""
        return np.full(len(operators), "measured" if device.name in self.spread else "data sheet")

    def figure_spread(self, device: Device, figure: str) -> float:
        """Returns the standard deviation of the logarithm of one of a device's figures, such as "memory_bytes_per_s";
        for one that wasn't measured, as if it were within a factor of two with 90 %.
        """
        return self.spread.get(device.name, {}).get(figure, _UNMEASURED)

    def _of_work(self, operators: Operators, device: Device) -> NDArray[np.float64]:
        """Standard deviation of the logarithm of what each operator's operations take."""
        names = ("flop_per_s[float32]", "vector_flop_per_s", "transcendental_flop", "small_products")
        single, vector, transcendental, small = (self.figure_spread(device, name) for name in names)
        found = np.where(operators.is_product, single, vector)
        for name, value in self.spread.get(device.name, {}).items():
            if name.startswith("flop_per_s["):
                found[operators.is_product & (operators.dtype == name[len("flop_per_s[") : -1])] = value
        slow = device.transcendental_flop * operators.transcendental
        share = np.divide(slow, operators.flop + slow, out=np.zeros_like(slow), where=slow > 0)
        found = np.hypot(found, share * transcendental)
        if device.small_products is not None:
            few = operators.is_single & (operators.flop < device.small_products.below_flop)
            found = np.where(few, np.hypot(found, small), found)
        if device.dilated_flop_per_s is not None:
            found[operators.is_dilated] = self.figure_spread(device, "dilated_flop_per_s")
        if device.extreme_flop_per_s is not None:
            found[operators.is_extreme] = self.figure_spread(device, "extreme_flop_per_s")
        return np.asarray(found)

    def _of_strided(self, operators: Operators, device: Device) -> NDArray[np.float64]:
        """Standard deviation of the logarithm of what reading against the order in memory takes."""
        found = np.zeros(len(operators))
        if device.strided is not None:
            nearest = device.strided.nearest(operators.strided_cache_bytes)
            for name in set(nearest.tolist()):
                found[nearest == name] = self.figure_spread(device, f"strided[{name}]")
        return found
