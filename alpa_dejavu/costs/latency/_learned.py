"""Learned kernels as a latency model of the planner: operators are looked at as the kernels that they are like."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.clusters.changed_cluster import slower
from alpa_dejavu.costs.latency._adapted import AdaptedKernels
from alpa_dejavu.costs.latency._analytic import AnalyticLatency
from alpa_dejavu.costs.latency._base import Latency, LatencyModel
from alpa_dejavu.costs.latency._kernels import Array, DataSheet
from alpa_dejavu.costs.latency._known_kernels import KernelSeconds, KnownKernels
from alpa_dejavu.costs.latency._operator_kernels import DistinctKernels, OperatorKernels
from alpa_dejavu.costs.latency._products import ProductCurve
from alpa_dejavu.problem import Device, Operators

_OF_INTERVAL = 2 * 1.6449
"""A 90 % interval's width in standard deviations, if errors were normal."""
_UNKNOWN = 0.5
"""The spread, as a share of the roofline, on a device that has no data sheet."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LearnedLatency(LatencyModel):
    """A latency model of operators by a fitted model of GPU kernels, for devices whose data sheet is known by their
    name; the roofline for all others.

    The rates of products and of memory are the device's, not the sheet's; a device that is slower in everything takes
    longer for everything. Compiled programs start a kernel in `Device.kernel_s`, which replaces the launch that the
    kernel model learned (one from Python). No operator is predicted to take less than its roofline. A kernel is
    predicted once, in however many layers it is.

    Attributes:
        model: a fitted `KernelModel`, or an `AdaptedKernels`: then `sheets` has only the GPU that it is adapted to.
        sheets: the data sheets of GPUs, by the names of devices.
        products: by the name of a device, then of a dtype: how the seconds of matrix products measured on the device
            differ from what the kernel model says.

    Raises ValueError for an `AdaptedKernels` with more than one sheet.
    """

    model: KernelSeconds
    sheets: Mapping[str, DataSheet]
    products: Mapping[str, Mapping[str, ProductCurve]] = dataclasses.field(default_factory=dict)
    _kernels: OperatorKernels = dataclasses.field(default_factory=OperatorKernels, init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.model, AdaptedKernels) and len(self.sheets) > 1:
            raise ValueError(f"learned latency: the model is adapted to one GPU, but sheets has {sorted(self.sheets)}")

    def predict(self, operators: Operators, device: Device) -> Latency:
        """Returns the predicted mean seconds of each operator on a device, and their standard deviation (spread)."""
        floor = AnalyticLatency().predict(operators, device).mean_s
        if device.name not in self.sheets or not len(operators):
            return Latency(floor, _UNKNOWN * floor)
        kernels, slowdown = self._kernels_of(operators, device)
        seconds, launch_s = self._known.predict(kernels.divided)
        work = np.maximum(seconds.mean - launch_s, 0.0)
        # Divided work may fall on a worse shape of tiles, but the division that a library makes isn't slower than none.
        cut = np.flatnonzero(kernels.divided.flop < kernels.whole.flop)
        undivided, launch_s = self._known.predict(kernels.whole.take(cut))
        work[cut] = np.minimum(work[cut], np.maximum(undivided.mean - launch_s, 0.0))
        work *= self._own_products(operators, device, kernels) * slowdown
        relative = (seconds.upper - seconds.lower) / seconds.mean / _OF_INTERVAL
        starts = operators.written_bytes > 0
        once = np.where(starts, work[kernels.of_operators], 0.0) * operators.count
        mean = np.maximum(once + device.kernel_s * operators.count * starts, floor)
        return Latency(mean, mean * relative[kernels.of_operators])

    def in_domain(self, operators: Operators, device: Device) -> NDArray[np.bool_]:
        """Returns whether each operator, on this device, is like what the model was fitted to, shape (operators,)."""
        if device.name not in self.sheets or not len(operators):
            return np.zeros(len(operators), dtype=np.bool_)
        kernels, _ = self._kernels_of(operators, device)
        return self._known.predict(kernels.divided)[0].in_domain[kernels.of_operators]

    def draws(self, operators: Operators, device: Device, count: int, rng: np.random.Generator) -> Array:
        """Draws random seconds of all operators on a device, with correlated errors, `count` times; shape (count,
        operators).

        Operators of one class on one device err together: of the variance of the logarithm the share that the fit
        found to be common to a group is drawn once for each class, the rest for each operator.
        """
        predicted = self.predict(operators, device)
        sigma = np.log1p(np.divide(predicted.spread_s, predicted.mean_s, where=predicted.mean_s > 0))
        if device.name in self.sheets and len(operators):
            kernels, _ = self._kernels_of(operators, device)
            kinds = kernels.divided.kind[kernels.of_operators]
        else:
            kinds = np.full(len(operators), "map")
        names, codes = np.unique(kinds, return_inverse=True)
        common = np.array([self.model.common_variance.get(str(name), 1.0) for name in names])
        together = rng.standard_normal((count, len(names)))[:, codes]
        alone = rng.standard_normal((count, len(operators)))
        error = np.sqrt(common[codes]) * together + np.sqrt(1 - common[codes]) * alone
        return np.asarray(predicted.mean_s * np.exp(sigma * error))

    def common_share(self, product: bool) -> float:
        """Returns the share of the variance of an operator's latency error that all operators of its class (matrix
        products, or all others) have in common.
        """
        return self.model.common_variance.get("product" if product else "map", 1.0)

    @cached_property
    def _known(self) -> KnownKernels:
        return KnownKernels(self.model)

    def _kernels_of(self, operators: Operators, device: Device) -> tuple[DistinctKernels, float]:
        """Returns the kernels that operators run on the device as its data sheet has it, and how many times slower the
        device is.
        """
        sheet = self.sheets[device.name]
        slowdown = sheet.flop_per_s / device.vector_flop_per_s
        nominal = slower(device, 1 / slowdown)
        own = dataclasses.replace(sheet, memory_bytes_per_s=nominal.memory_bytes_per_s)
        return self._kernels.of(operators, nominal, own), slowdown

    def _own_products(self, operators: Operators, device: Device, kernels: DistinctKernels) -> Array:
        """Returns the factor on each kernel's seconds: that of the device's own products, 1 for all other kernels."""
        factor = np.ones(len(kernels.first))
        product, dtype = kernels.divided.kind == "product", operators.dtype[kernels.first]
        for name, curve in self.products.get(device.name, {}).items():
            chosen = product & (dtype == name)
            factor[chosen] = curve.factor(np.maximum(operators.flop[kernels.first[chosen]], 1.0))
        return factor
