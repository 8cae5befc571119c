"""The peak of memory of a pipeline: what is counted of layers, and what a framework keeps besides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np

from fitting import Array, Deviation, Parameter, Physics, Rows

_ALIKE = {"log_micro_batch": 1.0, "log_pp": 1.0, "model": 1.0}
"""Over which plans are off alike."""
_OTHER = {"source": 1e-3}


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
