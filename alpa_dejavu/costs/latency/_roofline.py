"""The interface of latency models, and the roofline: operations or memory traffic, whichever takes longer."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

import numpy as np

from alpa_dejavu._util.format_fields import Given, GivenPositive
from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu.problem import Device, Operators

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

Array: TypeAlias = "Float[np.ndarray, ' operators']"


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Latency:
    """The predicted seconds of each operator, their mean and spread (one standard deviation); what is in a loop counts
    once for each trip.
    """

    mean_s: Array
    spread_s: Array

    @property
    def total_s(self) -> float:
        """Returns the mean seconds of all operators, run one after the other."""
        return float(self.mean_s.sum())


class LatencyModel(abc.ABC):
    """A model that predicts how long operators take on a device; `alpa_dejavu.testing.check_latency_model` says if one
    is sound.
    """

    @abc.abstractmethod
    def predict(self, operators: Operators, device: Device) -> Latency:
        """Returns the predicted seconds of each operator on one device while the other devices of its host
        compute too.
        """


@final
@dataclasses.dataclass(frozen=True)
class AnalyticLatency(LatencyModel):
    """A latency model by the roofline of a device's peak figures: the baseline.

    Each operator that writes to memory also pays the start of a kernel, and a device may say what compiled programs
    don't reach of its peaks. The predicted spread is zero: the model can't say how sure it is.

    References:
        Williams, Waterman and Patterson, Roofline: An Insightful Visual Performance Model, CACM 52(4), 2009.
    """

    def predict(self, operators: Operators, device: Device) -> Latency:
        """Returns the roofline's seconds of each operator on a device, with a spread of zero."""
        mean = roofline_parts(operators, device).once_s * operators.count
        return Latency(mean, np.zeros_like(mean))


@final
class RooflineParts(NamedTuple):
    """The parts of each operator's roofline seconds per run: the longer of work and traffic counts, plus start, strided
    reads and weights.
    """

    work_s: Array
    traffic_s: Array
    start_s: Array
    strided_s: Array
    uncached_s: Array

    @property
    def once_s(self) -> Array:
        """Returns the seconds of one run of each operator."""
        return np.maximum(self.work_s, self.traffic_s) + self.start_s + self.strided_s + self.uncached_s


def roofline_parts(operators: Operators, device: Device) -> RooflineParts:
    """Returns the parts of the roofline's seconds of each operator on a device. Strided reads take nothing on a device
    that declares no rate for them, and weights (parameters and their gradients) are part of the traffic on one without
    theirs.
    """
    rate = np.full(len(operators), device.vector_flop_per_s)
    products = operators.dtype[operators.is_product].tolist()
    rates = {dtype: device.rate(dtype) for dtype in set(products)}
    rate[operators.is_product] = [rates[dtype] for dtype in products]
    work = operators.flop + device.transcendental_flop * operators.transcendental
    traffic = operators.read_bytes + operators.written_bytes
    start_s = np.where(operators.written_bytes > 0, device.kernel_s, 0.0)
    small = device.small_products
    if small is not None:
        few = operators.flop < small.below_flop
        rate[operators.is_single & few] *= small.share
        start_s[operators.is_single & ~few] += small.library_s or 0.0
    if device.dilated_flop_per_s is not None:
        rate[operators.is_dilated] = device.dilated_flop_per_s
    if device.extreme_flop_per_s is not None:
        rate[operators.is_extreme] = device.extreme_flop_per_s
    strided, strided_s = device.strided, np.zeros(len(operators))
    if strided is not None:
        strided_s = operators.strided_bytes / strided.rate(operators.strided_cache_bytes)
    uncached_s = np.zeros(len(operators))
    if device.uncached_bytes_per_s is not None:
        uncached = operators.unbatched_read_bytes + operators.unbatched_written_bytes + operators.passed_bytes
        traffic, uncached_s = traffic - uncached, uncached / device.uncached_bytes_per_s
    return RooflineParts(work / rate, traffic / device.memory_bytes_per_s, start_s, strided_s, uncached_s)


_UNMEASURED = math.log(2) / REACH_90
"""The spread of a figure that has none of its own: it is within a factor of two with 90 %."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredRoofline(LatencyModel):
    """A roofline latency model with spreads, from the measured uncertainty of the device's figures.

    If a figure, such as the memory's rate, is off, so are the seconds of all operators that it bounds.
    """

    # By `Device.name`, the standard deviation of the logarithm of each measured figure, by the name of `Device`'s field
    # (of a rate by dtype "flop_per_s[float32]")
    spread: Mapping[str, Mapping[str, float]]
    # The standard deviation of the logarithm by which an operator is off the roofline, however well the figures are
    # known
    own: float
    spread_from: str  # where the spread comes from, in a few words
    # By the name of a device, then of a dtype: how the seconds of matrix products measured on the device differ from
    # those of their operations at the device's rate
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

    def common_share(self, operators: Operators, device: Device) -> Array:
        """Returns for each operator the share of the variance of its latency error that all operators of its class
        (matrix products, or all others) have in common: from the figure that bounds most of the
        class, a device's rate of products, or that of its memory.
        """
        shares = [self._common_share(figure) for figure in ("memory_bytes_per_s", "flop_per_s[float32]")]
        return np.array(shares)[operators.is_product.astype(int)]

    def _common_share(self, figure: str) -> float:
        common = float(np.mean([figures.get(figure, _UNMEASURED) ** 2 for figures in self.spread.values()] or [0.0]))
        whole = common + self.own**2
        return common / whole if whole > 0 else 1.0

    def footing(self, operators: Operators, device: Device) -> Shaped[np.ndarray, " operators"]:
        """Returns in a few words what the prediction of each operator on a device rests on."""
        return np.full(len(operators), "measured" if device.name in self.spread else "data sheet")

    def figure_spread(self, device: Device, figure: str) -> float:
        """Returns the standard deviation of the logarithm of one of a device's figures, such as "memory_bytes_per_s";
        for one that wasn't measured, as if it were within a factor of two with 90 %.
        """
        return self.spread.get(device.name, {}).get(figure, _UNMEASURED)

    def _of_work(self, operators: Operators, device: Device) -> Array:
        """Standard deviation of the logarithm of what each operator's operations take."""
        names = ("flop_per_s[float32]", "vector_flop_per_s", "transcendental_flop", "small_products")
        single, vector, transcendental, small = (self.figure_spread(device, name) for name in names)
        spread = np.where(operators.is_product, single, vector)
        for name, value in self.spread.get(device.name, {}).items():
            if name.startswith("flop_per_s["):
                spread[operators.is_product & (operators.dtype == name[len("flop_per_s[") : -1])] = value
        slow = device.transcendental_flop * operators.transcendental
        share = np.divide(slow, operators.flop + slow, out=np.zeros_like(slow), where=slow > 0)
        spread = np.hypot(spread, share * transcendental)
        if device.small_products is not None:
            few = operators.is_single & (operators.flop < device.small_products.below_flop)
            spread = np.where(few, np.hypot(spread, small), spread)
        if device.dilated_flop_per_s is not None:
            spread[operators.is_dilated] = self.figure_spread(device, "dilated_flop_per_s")
        if device.extreme_flop_per_s is not None:
            spread[operators.is_extreme] = self.figure_spread(device, "extreme_flop_per_s")
        return np.asarray(spread)

    def _of_strided(self, operators: Operators, device: Device) -> Array:
        """Standard deviation of the logarithm of what reading against the order in memory takes."""
        spread = np.zeros(len(operators))
        if device.strided is not None:
            nearest = device.strided.nearest(operators.strided_cache_bytes)
            for name in set(nearest.tolist()):
                spread[nearest == name] = self.figure_spread(device, f"strided[{name}]")
        return spread


_CENTRE_FLOP = 1e11


@final
@dataclasses.dataclass(frozen=True)
class ProductCurve:
    """A correction of predicted seconds of matrix products by their size: measured over predicted is exp(level + slope
    x + bend x²), with x = log10(flop / 1e11). Products smaller than `least_flop`, or larger than `most_flop`, are
    corrected as these two are.
    """

    level: Given
    slope: Given
    bend: Given
    least_flop: GivenPositive
    most_flop: GivenPositive

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
        """Returns the logarithm of the ratio of each of at least four products over what a curve says that is fitted to
        all others.
        """
        errors = np.zeros(len(flop))
        for n in range(len(flop)):
            others = np.arange(len(flop)) != n
            errors[n] = np.log(ratio[n] / cls.fit(flop[others], ratio[others]).factor(flop[n : n + 1])[0])
        return errors

    def factor(self, flop: Array) -> Array:
        """Returns the factor by which predicted seconds of products of so many FLOP are multiplied."""
        x = np.log10(np.clip(flop, self.least_flop, self.most_flop) / _CENTRE_FLOP)
        return np.asarray(np.exp(self.level + self.slope * x + self.bend * x**2))
