"""An iteration under DeepSpeed's pipeline engine, from forward times that were profiled layer by layer.

A profile of one sample is launch time and work; the work grows with the micro-batch, and more of it at a time runs a
little faster. A stage is as slow as the slowest kind of device in it. Each micro-batch pays launches, the
exchange between devices that share layers, and the transfers to its neighbours; each iteration the gradients' ring.

References:
    Li et al., AMP: Automatically Finding Model Parallel Strategies with Heterogeneity Awareness, NeurIPS 2022.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np

from alpa_dejavu.costs.iteration._hierarchical import Array, Deviation, Parameter, Physics, Rows
from alpa_dejavu.costs.iteration._links import ring_share

__all__ = ["DeepSpeedIteration"]

_HALF, _FULL = 2.0, 4.0
_LEAST_WORK = 0.2
"""The share of a profiled time that is work at least."""


def _each(names: tuple[str, ...], prefix: str, start: float, spread: float) -> list[Parameter]:
    return [Parameter(f"{prefix}:{name}", start, spread) for name in names]


@final
@dataclasses.dataclass(frozen=True)
class DeepSpeedIteration(Physics):
    """Predicts the seconds of a training iteration under DeepSpeed, from the columns that `deepspeed_columns` makes.

    Attributes:
        devices: the names of the kinds of devices, for each of which its own figures are fitted, such as its speed.
        hosts: the names of the kinds of hosts, for each of which its own figures are fitted, such as shares of links.
    """

    devices: tuple[str, ...]
    hosts: tuple[str, ...]
    deviations = (
        Deviation("iteration", {"log_tp": 1.0, "log_dp": 1.0, "log_micro_batch": 1.0, "source": 1e-3}, 0.04, 0.01),
        Deviation("cluster", {"source": 1e-3}, 0.0, 0.05),
    )

    @property
    def parameters(self) -> tuple[Parameter, ...]:  # type: ignore[override]
        """Returns the parameters that are fitted for training iterations under DeepSpeed: the framework's, then those
        of each kind of device and of host.
        """
        return (
            Parameter("compute_share", 1.0, 0.2),
            Parameter("profiled_launch_s", 0.6e-3, 0.7),
            Parameter("launch_s", 4e-3, 0.5),
            Parameter("light_share", 0.5, 0.7),
            Parameter("unknown_parameters_share", 0.7, 0.7),
            Parameter("send_start_s", 4e-3, 0.8),
            Parameter("exchange_start_s", 1e-3, 1.0),
            Parameter("update_s_per_parameter", 50e-12, 0.7),
            Parameter("fixed_s", 0.03, 1.0),
            Parameter("ring_within_share", 0.4, 0.7),
            Parameter("send_within_share", 0.4, 0.7),
            *_each(self.devices, "half_batch", 0.3, 0.7),
            *_each(self.devices[1:], "speed", 1.0, 0.15),
            *_each(self.hosts, "exchange", 2.5, 0.3),
            *_each(self.hosts, "ring_share", 0.8, 0.5),
            *_each(self.hosts, "send_share", 0.7, 0.5),
        )

    def log_value(self, values: Mapping[str, float], deviations: Mapping[str, Array], rows: Rows) -> Array:
        """Returns the logarithm of the predicted seconds of each training iteration, shape (N,)."""
        stage, send = self._stage_s(values, rows), self._send_s(values, rows)
        received = np.concatenate([np.zeros_like(send[:, :1]), send[:, :-1]], axis=1)
        slowest = (stage + 0.5 * (send + received)).max(axis=1)
        total = stage.sum(axis=1) + send.sum(axis=1) + (rows["num_micro_batches"] - 1) * slowest
        once = self._once_s(values, rows).max(axis=1) + values["fixed_s"]
        return np.log(total + once) + deviations["iteration"] + deviations["cluster"]

    def _stage_s(self, values: Mapping[str, float], rows: Rows) -> Array:
        """Forward and backward of each stage for one micro-batch, shape (N, S)."""
        tp, micro_batch = rows["tp"][:, None], rows["micro_batch"][:, None]
        profiled, blocks = rows["forward_s"], rows["blocks"]
        work = np.maximum(profiled - values["profiled_launch_s"] * blocks[:, :, None], _LEAST_WORK * profiled)
        half = np.array([values[f"half_batch:{name}"] for name in self.devices])
        speed = np.array([values.get(f"speed:{name}", 1.0) for name in self.devices])
        work = work * (1 + half / micro_batch[:, :, None]) / (1 + half) / speed
        compute = 3 * values["compute_share"] * (work * rows["present"]).max(axis=2) * micro_batch / tp
        launch = values["launch_s"] * rows["launched"] + 3 * values["light_share"] * rows["light_s"]
        exchange = rows["exchange_s"] * micro_batch * self._by_host(values, "exchange", rows)
        exchange = np.where(tp > 1, exchange + values["exchange_start_s"] * rows["launched"], 0.0)
        return np.asarray(compute + launch + exchange)

    def _send_s(self, values: Mapping[str, float], rows: Rows) -> Array:
        """Activations ahead and their gradients back, from each stage to the next, shape (N, S)."""
        share = np.where(
            rows["send_crosses"] > 0, self._by_host(values, "send_share", rows), values["send_within_share"]
        )
        moved = 2 * _HALF * rows["sent_elements"] * rows["micro_batch"][:, None]
        once = moved / rows["send_bytes_per_s"] / share + values["send_start_s"]
        return np.where(rows["sent_elements"] > 0, once, 0.0)

    def _once_s(self, values: Mapping[str, float], rows: Rows) -> Array:
        """Gradients' ring and update of each stage, shape (N, S)."""
        held = rows["parameters"] + values["unknown_parameters_share"] * rows["unknown_parameters"]
        share = np.where(
            rows["ring_crosses"] > 0, self._by_host(values, "ring_share", rows), values["ring_within_share"]
        )
        ring = _FULL * held * ring_share(rows["dp"])[:, None] / rows["ring_bytes_per_s"] / share
        return np.asarray(ring + held * values["update_s_per_parameter"])

    def _by_host(self, values: Mapping[str, float], name: str, rows: Rows) -> Array:
        known = np.array([values[f"{name}:{host}"] for host in self.hosts])
        return np.asarray(known[rows["host"].astype(int)])
