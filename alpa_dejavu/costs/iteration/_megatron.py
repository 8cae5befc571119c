"""An iteration of a GPT under Megatron-LM: 1F1B over stages of equal layers, tensor and data parallelism in each.

A layer takes as long as its host needs to launch it or its device to compute it, whichever is longer (softly). Matrix
products run at a share of the peak that falls with few rows and narrow factors; what is between them is memory
traffic; tensor parallelism adds four all-reduces.

References:
    Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC 2021.
    Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, MLSys 2023 (activation bytes).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np

from alpa_dejavu.costs.iteration._hierarchical import Array, Deviation, Parameter, Physics, Rows
from alpa_dejavu.costs.iteration._links import RingAllReduce, ring_share

__all__ = ["Machine", "MegatronIteration"]

_HALF = 2.0
"""Bytes of an element in mixed precision."""
_STATE_BYTES = 18.0
"""Bytes of a parameter with its gradient, Adam's two moments and the copy in full precision."""


@final
@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine type for predictions under Megatron-LM: hosts of equal devices, with rates by their data sheets.

    Attributes:
        flop_per_s: a device's peak rate of matrix products in half precision.
        memory_bytes_per_s, memory_bytes: bandwidth and size of a device's memory.
        devices_per_host: how many devices a host has; they share its links.
        between_hosts_bytes_per_s: the rate of all links of a host to other hosts together.
        all_reduce: the model of all-reduces inside a host.
    """

    flop_per_s: float
    memory_bytes_per_s: float
    memory_bytes: float
    devices_per_host: int
    between_hosts_bytes_per_s: float
    all_reduce: RingAllReduce


@final
@dataclasses.dataclass(frozen=True)
class MegatronIteration(Physics):
    """Predicts the seconds of a training iteration of a GPT under Megatron-LM.

    Columns: hidden, heads, layers, seq_len, tp, dp, pp, micro_batch (samples of a replica), num_micro_batches, and
    log_hidden, log_tp, log_dp, log_micro_batch.
    """

    machine: Machine
    vocabulary: float = 51200.0

    parameters = (
        Parameter("launch_layer_s", 3e-3, 0.5),
        Parameter("launch_more_with_tp", 0.05, 0.7),
        Parameter("launch_head_s", 2e-3, 1.0),
        Parameter("softness", 4.0, 0.5),
        Parameter("matmul_share", 0.8, 0.15),
        Parameter("half_rows", 300.0, 1.0),
        Parameter("half_width", 300.0, 1.0),
        Parameter("memory_share", 0.75, 0.2),
        Parameter("traffic_share", 1.0, 0.3),
        Parameter("head_share", 0.5, 0.4),
        Parameter("undivided_head", 2.0, 0.5),
        Parameter("head_bytes_per_logit", 20.0, 0.7),
        Parameter("tp_share", 0.8, 0.4),
        Parameter("dp_share", 0.9, 0.4),
        Parameter("between_hosts_share", 0.7, 0.2),
        Parameter("lost_per_doubled_hosts", 0.015, 0.5),
        Parameter("update_bytes_per_parameter", 30.0, 0.3),
    )
    deviations = (
        Deviation("layer", {"log_hidden": 1.0, "log_tp": 0.7, "log_micro_batch": 0.7}, 0.1, 0.08),
        Deviation("head", {"log_hidden": 1.0, "log_tp": 0.7, "log_micro_batch": 0.7}, 0.1, 0.1),
        Deviation("once", {"log_hidden": 1.0, "log_tp": 0.7, "log_dp": 0.7}, 0.1, 0.1),
    )

    def log_value(self, values: Mapping[str, float], deviations: Mapping[str, Array], rows: Rows) -> Array:
        """Returns the logarithm of the predicted seconds of each training iteration, shape (N,)."""
        layer = self._layer_s(values, rows) * np.exp(deviations["layer"])
        head = self._head_s(values, rows) * np.exp(deviations["head"])
        pp, micro_batches = rows["pp"], rows["num_micro_batches"]
        send = self._send_s(values, rows)
        all_stages = rows["layers"] * layer + 1.1 * head + 2 * (pp - 1) * send
        slowest = np.where(pp > 1, rows["layers"] / pp * layer + head + 2 * send, all_stages)
        once = self._once_s(values, rows) * np.exp(deviations["once"])
        hosts = np.maximum(rows["tp"] * rows["dp"] * pp / self.machine.devices_per_host, 1.0)
        lost = values["lost_per_doubled_hosts"] * np.log2(hosts)
        return np.log(all_stages + (micro_batches - 1) * slowest + once) + lost

    def _layer_s(self, values: Mapping[str, float], rows: Rows) -> Array:
        """Forward and backward of one layer for one micro-batch."""
        hidden, tp = rows["hidden"], rows["tp"]
        tokens = rows["micro_batch"] * rows["seq_len"]
        rate = self.machine.flop_per_s * values["matmul_share"] / (1 + values["half_rows"] / tokens)
        narrow = values["half_width"]
        compute = 12 * tokens * rows["seq_len"] * hidden / tp * (1 + narrow / (hidden / rows["heads"]))
        share = hidden / tp
        for inner, outer in ((hidden, 3 * share), (share, hidden), (hidden, 4 * share), (4 * share, hidden)):
            compute = compute + 6 * tokens * inner * outer * (1 + narrow / inner) * (1 + narrow / outer)
        moved = _HALF * tokens * (hidden * 3 * (12 + 12 / tp) + 18 * rows["seq_len"] * rows["heads"] / tp)
        traffic = moved * values["traffic_share"] / (self.machine.memory_bytes_per_s * values["memory_share"])
        reduced = 4 * self.machine.all_reduce.seconds(_HALF * tokens * hidden, tp) / values["tp_share"]
        device = (compute / rate + traffic) * self._recomputed(rows) + reduced
        launch = values["launch_layer_s"] * (1 + values["launch_more_with_tp"] * np.log2(tp))
        return _softly_longer(launch, device, values["softness"])

    def _head_s(self, values: Mapping[str, float], rows: Rows) -> Array:
        """Logits and loss, forward and backward, for one micro-batch."""
        logits = rows["micro_batch"] * rows["seq_len"] * self.vocabulary / rows["tp"]
        compute = 6 * logits * rows["hidden"] / self.machine.flop_per_s / values["head_share"]
        compute = compute * np.where(rows["tp"] > 1, 1.0, values["undivided_head"])
        traffic = logits * values["head_bytes_per_logit"] / (self.machine.memory_bytes_per_s * values["memory_share"])
        return _softly_longer(np.full_like(logits, values["launch_head_s"]), compute + traffic, values["softness"])

    def _once_s(self, values: Mapping[str, float], rows: Rows) -> Array:
        """The gradients' all-reduce and the update, of the first stage's parameters."""
        dp, per_host = rows["dp"], self.machine.devices_per_host
        held = self._held_parameters(rows)
        rate = self.machine.memory_bytes_per_s * values["memory_share"]
        inside = self.machine.all_reduce.seconds(_HALF * held, dp) / values["dp_share"]
        across = self.machine.between_hosts_bytes_per_s * values["between_hosts_share"] / rows["tp"]
        outside = _HALF * held * ring_share(dp) / across
        reduced = np.where(rows["tp"] * dp > per_host, outside, inside)
        return held * values["update_bytes_per_parameter"] / rate + reduced

    def _send_s(self, values: Mapping[str, float], rows: Rows) -> Array:
        """Activations to the next stage: each of a host's devices sends its share of them."""
        devices = rows["tp"] * rows["dp"]
        num_bytes = _HALF * rows["micro_batch"] * rows["seq_len"] * rows["hidden"] / rows["tp"]
        within = devices * rows["pp"] <= self.machine.devices_per_host
        across = self.machine.between_hosts_bytes_per_s * values["between_hosts_share"] / self.machine.devices_per_host
        return np.where(rows["pp"] > 1, num_bytes / np.where(within, self.machine.all_reduce.bytes_per_s, across), 0.0)

    def _held_parameters(self, rows: Rows) -> Array:
        hidden = rows["hidden"]
        layers = rows["layers"] / rows["pp"] * (12 * hidden**2 + 13 * hidden)
        return (layers + (self.vocabulary + rows["seq_len"]) * hidden) / rows["tp"]

    def _recomputed(self, rows: Rows) -> Array:
        """Returns the factor on a layer's cost: above 1 where memory is so small that backward computes it again."""
        hidden, tp, seq = rows["hidden"], rows["tp"], rows["seq_len"]
        layer = rows["micro_batch"] * seq * hidden * (10 + 24 / tp + 5 * rows["heads"] * seq / hidden / tp)
        kept = layer * rows["layers"] / rows["pp"] * np.minimum(rows["pp"], rows["num_micro_batches"])
        full = (_STATE_BYTES * self._held_parameters(rows) + kept) / (0.9 * self.machine.memory_bytes)
        return 1 + (1 / 3) / (1 + full**-12.0)


def _softly_longer(launch: Array, device: Array, softness: float) -> Array:
    """The longer of two, and a little more where they are alike."""
    return np.asarray((launch**softness + device**softness) ** (1 / softness))
