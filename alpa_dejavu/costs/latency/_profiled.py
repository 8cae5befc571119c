"""Layers whose passes were profiled on a kind of device, as operators and as a latency model of the planner."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu.costs.latency._roofline import AnalyticLatency, Latency, LatencyModel
from alpa_dejavu.problem import Device, Operator, Operators

if TYPE_CHECKING:
    from jaxtyping import Float

_PREFIX = "profiled "


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LayerTimes:
    """The profiled seconds of a layer's passes on one kind of device: for each degree of tensor parallelism the samples
    of a device group's micro-batch, ascending, and the seconds of the pass with so many. Between
    them seconds go by straight lines; beyond, they grow with the samples.
    """

    seconds: Mapping[int, tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]]

    def pass_s(self, tensor_parallel: int, samples: float) -> float:
        """Returns the seconds of the pass with a number of samples; ValueError for a degree that wasn't profiled."""
        if tensor_parallel not in self.seconds:
            degrees = ", ".join(map(str, sorted(self.seconds)))
            raise ValueError(f"tensor_parallel is {tensor_parallel}, but must be one that was profiled: {degrees}")
        counts, seconds = self.seconds[tensor_parallel]
        if samples < counts[0]:
            return float(seconds[0] * samples / counts[0])
        if samples > counts[-1]:
            return float(seconds[-1] * samples / counts[-1])
        return float(np.interp(samples, counts, seconds))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ProfiledLayers(LatencyModel):
    """A latency model of layers that were profiled as a whole, by the name of a device, then of a pass, as
    `profiled_pass` has it; of all other operators the roofline. The seconds of tensor-parallel devices have the
    collectives in them.
    """

    times: Mapping[str, Mapping[str, LayerTimes]]

    def predict(self, operators: Operators, device: Device) -> Latency:
        """Returns the seconds of each pass that was profiled on the device, and of other operators by the roofline."""
        mean = AnalyticLatency().predict(operators, device).mean_s.copy()
        for n, record in enumerate(operators.records):
            if record.primitive.startswith(_PREFIX):
                name = record.primitive.removeprefix(_PREFIX)
                passes = self.times.get(device.name, {})
                if name not in passes:
                    raise ValueError(
                        f"layer is {name!r}, but must be one that was profiled on {device.name}; profile it"
                    )
                along = round(record.unbatched_read_bytes / operators.unbatched_read_bytes[n])
                samples = float(operators.flop[n]) * along
                mean[n] = passes[name].pass_s(along, samples)
        return Latency(mean, np.zeros_like(mean))


def profiled_pass(name: str, samples: float, launches: float) -> Operators:
    """Returns the pass of a layer that was profiled as a whole, as one operator that launches so many."""
    return Operators.of(
        [
            Operator(
                "other", f"{_PREFIX}{name}", (), (), "float32", float(samples), read_bytes=1.0, written_bytes=1.0,
                unbatched_read_bytes=1.0, count=float(launches),
            )
        ]
    )  # fmt: skip
