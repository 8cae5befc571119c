"""The roofline: an operator takes as long as its operations or its memory traffic, whichever takes longer."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np

from alpa_dejavu.latency._base import Latency, LatencyModel
from alpa_dejavu.problem import Device, Operators


@final
@dataclasses.dataclass(frozen=True)
class AnalyticLatency(LatencyModel):
    """The roofline on a device's figures: the null model, which knows nothing but peaks.

    Each operator that writes to memory also pays the start of a kernel, and a device may say what compiled programs
    don't reach of its peaks. The spread is zero: it can't say how sure it is.

    References:
        Williams, Waterman and Patterson, Roofline: An Insightful Visual Performance Model, CACM 52(4), 2009.
    """

    def predict(self, operators: Operators, device: Device) -> Latency:
        """Seconds of each operator."""
        rate = np.full(len(operators), device.vector_flop_per_s)
        products = operators.dtype[operators.is_product].tolist()
        rate[operators.is_product] = [device.rate(dtype) for dtype in products]
        work = operators.flop + device.transcendental_flop * operators.transcendental
        traffic = operators.read_bytes + operators.written_bytes
        small = device.small_products
        if small is not None:
            rate[operators.is_single & (operators.flop < small.below_flop)] *= small.share
        if device.dilated_flop_per_s is not None:
            rate[operators.is_dilated] = device.dilated_flop_per_s
        once = np.maximum(work / rate, traffic / device.memory_bytes_per_s)
        once += np.where(operators.written_bytes > 0, device.kernel_s, 0.0)
        strided = device.strided
        if strided is not None:
            cached = operators.strided_bytes < strided.cached_bytes
            once += operators.strided_bytes / np.where(cached, strided.cached_bytes_per_s, strided.bytes_per_s)
        mean = once * operators.count
        return Latency(mean, np.zeros_like(mean))
