"""An iteration of a pipeline whose stages' layers were profiled, and its peak of memory.

1F1B with transfers that block: in a steady state a stage computes one micro-batch, and hands activations and
gradients to both neighbours; the slowest stage sets the pace. Every block pays its launches from the host.

References:
    Strati et al., Sailor: Automating Distributed Training over Dynamic, Heterogeneous, and Geo-distributed Clusters,
    SOSP 2025. Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021 (1F1B).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np

from alpa_dejavu.costs.iteration._hierarchical import Array, Deviation, Parameter, Physics, Rows

__all__ = ["PeakMemory", "PipelineRun"]

_ALIKE = {"log_micro_batch": 1.0, "log_pp": 1.0, "model": 1.0}
"""Over which plans are off alike."""
_OTHER = {"source": 1e-3}


@final
class PipelineRun(Physics):
    """Predicts the seconds of a training iteration of a 1F1B pipeline whose layers were profiled.

    Columns of shape (N, S) for N iterations with S stages: device_s (seconds of a micro-batch), blocks (transformer
    layers), send_s to the next stage, ring_s (of the gradients' all-reduce: bytes over the links' rate), ring_bytes,
    parameter_bytes. Columns of shape (N,): num_micro_batches, log_micro_batch, log_pp, model, source.
    """

    parameters = (
        Parameter("device_share", 1.0, 0.15),
        Parameter("launch_s", 2.5e-3, 0.4),
        Parameter("softness", 1.5, 0.3),
        Parameter("send_share", 1.0, 0.3),
        Parameter("send_start_s", 1e-4, 1.0),
        Parameter("ring_share", 1.3, 0.3),
        Parameter("ring_s_per_byte", 5e-11, 0.7),
        Parameter("update_s_per_byte", 5e-12, 0.5),
        Parameter("fixed_s", 2e-3, 0.7),
    )
    deviations = (Deviation("iteration", _ALIKE, 0.04, 0.01), Deviation("cluster", _OTHER, 0.0, 0.1))

    def log_value(self, values: Mapping[str, float], deviations: Mapping[str, Array], rows: Rows) -> Array:
        """Returns the logarithm of the predicted seconds of each training iteration, shape (N,)."""
        softness = values["softness"]
        launch, device = values["launch_s"] * rows["blocks"], values["device_share"] * rows["device_s"]
        stage = (launch**softness + device**softness) ** (1 / softness)
        send = 2 * (rows["send_s"] * values["send_share"] + values["send_start_s"] * (rows["send_s"] > 0))
        received = np.concatenate([np.zeros_like(send[:, :1]), send[:, :-1]], axis=1)
        once = rows["ring_s"] * values["ring_share"] + rows["ring_bytes"] * values["ring_s_per_byte"]
        once = (once + rows["parameter_bytes"] * values["update_s_per_byte"]).max(axis=1) + values["fixed_s"]
        pace = (stage + send + received).max(axis=1)
        total = stage.sum(axis=1) + send.sum(axis=1) + (rows["num_micro_batches"] - 1) * pace + once
        return np.log(total) + deviations["iteration"] + deviations["cluster"]


@final
class PeakMemory(Physics):
    """Predicts the peak bytes of memory on the device that needs most, for a pipeline whose layers were profiled.

    Columns of shape (N, S) for N pipelines with S stages: parameter_bytes, activation_bytes of a micro-batch, in_flight
    (how many micro-batches are kept), logit_bytes. Columns of shape (N,): dp, log_micro_batch, log_pp, model, source.
    """

    parameters = (
        Parameter("context_bytes", 1.5e9, 0.7),
        Parameter("states_per_parameter", 4.0, 0.15),
        Parameter("activations_share", 1.0, 0.2),
        Parameter("logits_share", 2.0, 0.5),
        Parameter("ring_buffer_share", 0.5, 0.7),
    )
    deviations = (Deviation("peak", _ALIKE, 0.03, 0.01), Deviation("cluster", _OTHER, 0.0, 0.15))

    def log_value(self, values: Mapping[str, float], deviations: Mapping[str, Array], rows: Rows) -> Array:
        """Returns the logarithm of the predicted peak bytes of each row's fullest stage, shape (N,)."""
        peak = sum(self.by_kind(values, rows).values(), np.zeros(rows["parameter_bytes"].shape))
        return np.log(peak.max(axis=1)) + deviations["peak"] + deviations["cluster"]

    def by_kind(self, values: Mapping[str, float], rows: Rows) -> dict[str, Array]:
        """Returns each stage's predicted bytes by what they are for (activations, logits ...), each of shape (N, S); 0
        where there is no stage.
        """
        held, exists = rows["parameter_bytes"], rows["parameter_bytes"] > 0
        return {
            "context": values["context_bytes"] * exists,
            "parameters, gradients and optimizer": values["states_per_parameter"] * held,
            "activations": values["activations_share"] * rows["activation_bytes"] * rows["in_flight"],
            "logits": values["logits_share"] * rows["logit_bytes"],
            "buffers of the ring": values["ring_buffer_share"] * held * (rows["dp"] > 1)[:, None],
        }
