"""Learned kernels as a latency model of the planner: operators are looked at as the kernels that they are like."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.latency._analytic import AnalyticLatency
from alpa_dejavu.latency._base import Latency, LatencyModel
from alpa_dejavu.latency._kernel_model import KernelModel
from alpa_dejavu.latency._kernels import Array, DataSheet, Kernels
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
    """

    model: KernelModel
    sheets: Mapping[str, DataSheet]

    def predict(self, operators: Operators, device: Device) -> Latency:
        """Seconds of each operator, and one standard deviation."""
        floor = AnalyticLatency().predict(operators, device).mean_s
        if device.name not in self.sheets or not len(operators):
            return Latency(floor, _UNKNOWN * floor)
        share, whole = (self._kernels(operators, device, part) for part in (True, False))
        # Divided work may fall on a worse shape of tiles, but the division that a library makes isn't slower than none.
        divided, undivided = (self._work_s(kernels, device, operators) for kernels in (share, whole))
        once = np.where(operators.written_bytes > 0, np.minimum(divided, undivided), 0.0) * operators.count
        mean = np.maximum(once + device.kernel_s * operators.count * (operators.written_bytes > 0), floor)
        seconds = self.model.predict(share)
        relative = (seconds.upper - seconds.lower) / seconds.mean / _OF_INTERVAL
        return Latency(mean, mean * relative)

    def in_domain(self, operators: Operators, device: Device) -> NDArray[np.bool_]:
        """Whether each operator, on this device, is like what the model was fitted on."""
        if device.name not in self.sheets or not len(operators):
            return np.zeros(len(operators), dtype=np.bool_)
        return self.model.predict(self._kernels(operators, device, True)).in_domain

    def draws(self, operators: Operators, device: Device, count: int, rng: np.random.Generator) -> Array:
        """Seconds of all operators together, `count` times, of shape (count, operators).

        Operators of one class on one device err together: of the variance of the logarithm the share that the fit
        found to be common to a group is drawn once for each class, the rest for each operator.
        """
        predicted = self.predict(operators, device)
        sigma = np.log1p(np.divide(predicted.spread_s, predicted.mean_s, where=predicted.mean_s > 0))
        if device.name in self.sheets and len(operators):
            kinds = self._kernels(operators, device, True).kind
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

    def _work_s(self, kernels: Kernels, device: Device, operators: Operators) -> Array:
        return np.maximum(self.model.predict(kernels).mean - self.model.floor_s(kernels), 0.0)

    def _kernels(self, operators: Operators, device: Device, divided: bool) -> Kernels:
        """As kernels: of products the shapes, of all others the traffic; `divided`: of one device's share."""
        columns: dict[str, list[object]] = {name: [] for name in ("op", "gpu", "batch", "m", "n", "k")}
        sheets = {}
        traffic = operators.read_bytes + operators.written_bytes
        for place, record in enumerate(operators.records):
            flop = float(operators.flop[place]) if divided else record.flop
            moved = float(traffic[place]) if divided else record.read_bytes + record.written_bytes
            name, rate, sizes = "stream", device.rate("float32"), (1.0, 1.0, max(moved / 8, 1.0), 1.0)
            if record.product_sizes is not None:
                batch, rows, others, inner = record.product_sizes
                sizes = (batch, max(rows * flop / record.flop, 1.0), others, inner)
                name, rate = ("linear" if batch == 1 else "bmm"), device.rate(record.dtype)
            key = f"{rate:g}"
            sheets[key] = dataclasses.replace(self.sheets[device.name], flop_per_s=rate)
            for column, value in zip(columns, ("relu" if name == "stream" else name, key, *sizes), strict=True):
                columns[column].append(value)
        return Kernels.of(columns, sheets)
