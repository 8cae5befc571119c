"""Layers whose passes were profiled on a kind of device, as operators and as a latency model of the planner."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.costs.latency._base import Latency, LatencyModel
from alpa_dejavu.costs.latency._roofline import AnalyticLatency
from alpa_dejavu.problem import Device, Operator, Operators

_PREFIX = "profiled "


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LayerTimes:
    """The profiled seconds of a layer's passes on one kind of device, by the degree of tensor parallelism.

    Attributes:
        seconds: for each degree the samples of a device group's micro-batch, ascending, and the seconds of the pass
            with so many, each of shape (k,). Between them seconds go by straight lines; with fewer or more samples than
            were profiled, they grow with their number.
    """

    seconds: Mapping[int, tuple[NDArray[np.float64], NDArray[np.float64]]]

    def pass_s(self, tensor_parallel: int, samples: float) -> float:
        """Returns the seconds of the pass on a group of tensor-parallel devices with a number of samples.

        Raises:
            ValueError: that degree of tensor parallelism wasn't profiled.
        """
        if tensor_parallel not in self.seconds:
            known = ", ".join(map(str, sorted(self.seconds)))
            raise ValueError(f"tensor_parallel is {tensor_parallel}, but must be one that was profiled: {known}")
        counts, seconds = self.seconds[tensor_parallel]
        if samples < counts[0]:
            return float(seconds[0] * samples / counts[0])
        if samples > counts[-1]:
            return float(seconds[-1] * samples / counts[-1])
        return float(np.interp(samples, counts, seconds))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ProfiledLayers(LatencyModel):
    """A latency model of layers that were profiled as a whole; of all other operators the roofline.

    The seconds of tensor-parallel devices have the collectives in them.

    Attributes:
        times: by the name of a device, then of a pass, as `profiled_pass` has it.
    """

    times: Mapping[str, Mapping[str, LayerTimes]]

    def predict(self, operators: Operators, device: Device) -> Latency:
        """Returns the seconds of each pass that was profiled on the device, and of other operators by the roofline.

        Raises:
            ValueError: a profiled layer, or its degree of tensor parallelism, wasn't profiled on the device.
        """
        mean = AnalyticLatency().predict(operators, device).mean_s.copy()
        for n, record in enumerate(operators.records):
            if record.primitive.startswith(_PREFIX):
                name = record.primitive.removeprefix(_PREFIX)
                known = self.times.get(device.name, {})
                if name not in known:
                    raise ValueError(
                        f"layer is {name!r}, but must be one that was profiled on {device.name}; profile it"
                    )
                along = round(record.unbatched_read_bytes / operators.unbatched_read_bytes[n])
                samples = float(operators.flop[n]) * along
                mean[n] = known[name].pass_s(along, samples)
        return Latency(mean, np.zeros_like(mean))


def profiled_pass(name: str, samples: float, launches: float) -> Operators:
    """Returns the pass of a layer that was profiled as a whole, as one operator.

    Args:
        name: the layer's and the pass's name, by which `ProfiledLayers` finds it.
        samples: of a micro-batch.
        launches: how many operators the pass launches.
    """
    return Operators.of(
        [
            Operator(
                "other", f"{_PREFIX}{name}", (), (), "float32", float(samples), read_bytes=1.0, written_bytes=1.0,
                unbatched_read_bytes=1.0, count=float(launches),
            )
        ]
    )  # fmt: skip
