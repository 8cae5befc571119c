"""The roofline: an operator takes as long as its operations or its memory traffic, whichever takes longer."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.costs.latency._base import Latency, LatencyModel
from alpa_dejavu.problem import Device, Operators


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

    work_s: NDArray[np.float64]
    traffic_s: NDArray[np.float64]
    start_s: NDArray[np.float64]
    strided_s: NDArray[np.float64]
    uncached_s: NDArray[np.float64]

    @property
    def once_s(self) -> NDArray[np.float64]:
        """Returns the seconds of one run of each operator, shape (operators,)."""
        return np.maximum(self.work_s, self.traffic_s) + self.start_s + self.strided_s + self.uncached_s


def roofline_parts(operators: Operators, device: Device) -> RooflineParts:
    """Returns the parts of the roofline's seconds of each operator on a device: work, traffic, start, strided reads,
    and weights, which are parameters and their gradients.

    Strided reads take nothing on a device that declares no rate for them, and weights are part of the traffic.
    """
    rate = np.full(len(operators), device.vector_flop_per_s)
    products = operators.dtype[operators.is_product].tolist()
    rate[operators.is_product] = [device.rate(dtype) for dtype in products]
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
