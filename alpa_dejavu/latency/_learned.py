"""Learned kernels as a latency model of the planner: operators are looked at as the kernels that they are like."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._left_out import Seconds
from alpa_dejavu.latency._analytic import AnalyticLatency
from alpa_dejavu.latency._base import Latency, LatencyModel
from alpa_dejavu.latency._kernel_model import KernelModel
from alpa_dejavu.latency._kernels import Array, DataSheet, Kernels
from alpa_dejavu.latency._operator_kernels import OperatorKernels
from alpa_dejavu.latency._products import ProductCurve
from alpa_dejavu.problem import Device, Operators

_OF_INTERVAL = 2 * 1.6449
"""A 90 % interval's width in standard deviations, if errors were normal."""
_UNKNOWN = 0.5
"""The spread, as a share of the roofline, on a device that has no data sheet."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LearnedLatency(LatencyModel):
    """A fitted model of kernels, for devices whose data sheet is known by their name; the roofline for all others.

    Compiled programs start kernels in `Device.kernel_s`; the floor that the model learned with (a launch from Python)
    is replaced by it. No operator is predicted to take less than its roofline.

    Attributes:
        model: fitted.
        sheets: by the names of devices.
        products: by the names of devices and dtypes, how products measured there differ from what the model says.
    """

    model: KernelModel
    sheets: Mapping[str, DataSheet]
    products: Mapping[str, Mapping[str, ProductCurve]] = dataclasses.field(default_factory=dict)
    _kernels: OperatorKernels = dataclasses.field(default_factory=OperatorKernels, init=False, repr=False)

    def predict(self, operators: Operators, device: Device) -> Latency:
        """Seconds of each operator, and one standard deviation."""
        floor = AnalyticLatency().predict(operators, device).mean_s
        if device.name not in self.sheets or not len(operators):
            return Latency(floor, _UNKNOWN * floor)
        kernels, whole = self._kernels.of(operators, device, self.sheets[device.name])
        seconds = self.model.predict(kernels)
        work = self._work_s(kernels, seconds)
        # Divided work may fall on a worse shape of tiles, but the division that a library makes isn't slower than none.
        cut = np.flatnonzero(kernels.flop < whole.flop)
        if len(cut):
            undivided = whole.take(cut)
            work[cut] = np.minimum(work[cut], self._work_s(undivided, self.model.predict(undivided)))
        work *= self._own_products(operators, device, kernels)
        once = np.where(operators.written_bytes > 0, work, 0.0) * operators.count
        mean = np.maximum(once + device.kernel_s * operators.count * (operators.written_bytes > 0), floor)
        relative = (seconds.upper - seconds.lower) / seconds.mean / _OF_INTERVAL
        return Latency(mean, mean * relative)

    def in_domain(self, operators: Operators, device: Device) -> NDArray[np.bool_]:
        """Whether each operator, on this device, is like what the model was fitted on."""
        if device.name not in self.sheets or not len(operators):
            return np.zeros(len(operators), dtype=np.bool_)
        kernels, _ = self._kernels.of(operators, device, self.sheets[device.name])
        return self.model.predict(kernels).in_domain

    def draws(self, operators: Operators, device: Device, count: int, rng: np.random.Generator) -> Array:
        """Seconds of all operators together, `count` times, of shape (count, operators).

        Operators of one class on one device err together: of the variance of the logarithm the share that the fit
        found to be common to a group is drawn once for each class, the rest for each operator.
        """
        predicted = self.predict(operators, device)
        sigma = np.log1p(np.divide(predicted.spread_s, predicted.mean_s, where=predicted.mean_s > 0))
        if device.name in self.sheets and len(operators):
            kinds = self._kernels.of(operators, device, self.sheets[device.name])[0].kind
        else:
            kinds = np.full(len(operators), "map")
        names, codes = np.unique(kinds, return_inverse=True)
        common = np.array([self.model.common_variance.get(str(name), 1.0) for name in names])
        together = rng.standard_normal((count, len(names)))[:, codes]
        alone = rng.standard_normal((count, len(operators)))
        error = np.sqrt(common[codes]) * together + np.sqrt(1 - common[codes]) * alone
        return np.asarray(predicted.mean_s * np.exp(sigma * error))

    def common_share(self, product: bool) -> float:
        """Of the variance of an operator's error, the share that all of its class have in common."""
        return self.model.common_variance.get("product" if product else "map", 1.0)

    def _own_products(self, operators: Operators, device: Device, kernels: Kernels) -> Array:
        """What each operator's seconds are multiplied with for the device's own sake."""
        factor = np.ones(len(operators))
        for dtype, curve in self.products.get(device.name, {}).items():
            chosen = (kernels.kind == "product") & (operators.dtype == dtype)
            factor[chosen] = curve.factor(np.maximum(operators.flop[chosen], 1.0))
        return factor

    def _work_s(self, kernels: Kernels, seconds: Seconds) -> Array:
        return np.maximum(seconds.mean - self.model.floor_s(kernels), 0.0)
