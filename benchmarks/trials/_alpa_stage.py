"""A stage of a GPT under Alpa, one micro-batch, rematerialised by layer: its seconds, and XLA's peak of memory.

References:
    Zheng et al., Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning, OSDI 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np

from fitting import Array, Deviation, Parameter, Physics, Rows

__all__ = ["AlpaStage", "AlpaStagePeak"]

_HALF = 2.0
_ALIKE = {"log_dp": 0.7, "log_tp": 0.7, "log_samples": 1.0}


@final
class AlpaStage(Physics):
    """Predicts the forward and backward seconds of one micro-batch through a stage of a GPT under Alpa.

    Columns: samples (of a micro-batch), tokens (of a sample), hidden, vocabulary, blocks (transformer layers of the
    stage), heads (1 if it computes the logits, else 0), dp, tp, log_dp, log_tp, log_samples.
    """

    parameters = (
        Parameter("flop_per_s", 4e13, 1.0),
        Parameter("head_flop_per_s", 4e13, 1.0),
        Parameter("exchange_bytes_per_s", 3e10, 1.0),
        Parameter("ring_bytes_per_s", 3e10, 1.0),
        Parameter("start_s", 2e-3, 1.0),
    )
    deviations = (Deviation("stage", _ALIKE, 0.05, 0.02),)

    def log_value(self, values: Mapping[str, float], deviations: Mapping[str, Array], rows: Rows) -> Array:
        """Returns the logarithm of each stage's predicted seconds, shape (N,). A transformer block that is
        rematerialised takes as long as four forward passes.
        """
        tokens, hidden = rows["samples"] * rows["tokens"] / rows["dp"], rows["hidden"]
        block = 4 * tokens * (24 * hidden**2 + 4 * rows["tokens"] * hidden) / values["flop_per_s"]
        head = 3 * tokens * 2 * hidden * rows["vocabulary"] / values["head_flop_per_s"]
        exchanged = 6 * _HALF * tokens * hidden * _ring_share(rows["tp"]) / values["exchange_bytes_per_s"]
        ring = 12 * hidden**2 / rows["tp"] * _HALF * _ring_share(rows["dp"]) / values["ring_bytes_per_s"]
        computed = (rows["blocks"] * block + rows["heads"] * head) / rows["tp"]
        return np.log(computed + rows["blocks"] * (exchanged + ring) + values["start_s"]) + deviations["stage"]


@final
class AlpaStagePeak(Physics):
    """Predicts a device's peak bytes of memory in a stage of a GPT under Alpa: the larger of forward's and
    backward's.

    Columns: those of `AlpaStage`, blocks_per_layer (transformer blocks of one of Alpa's layers), layers, parameters.
    """

    parameters = (
        Parameter("bytes_per_parameter", 16.0, 0.4),
        Parameter("block_bytes_per_element", 34.0, 0.5),
        Parameter("boundary_bytes_per_element", 2.0, 0.7),
        Parameter("score_bytes", 5.0, 0.7),
        Parameter("logit_bytes", 8.0, 0.7),
        Parameter("start_bytes", 1e8, 1.0),
    )
    deviations = (Deviation("peak", _ALIKE, 0.08, 0.03),)

    def log_value(self, values: Mapping[str, float], deviations: Mapping[str, Array], rows: Rows) -> Array:
        """Returns the logarithm of each stage's predicted peak bytes, shape (N,): parameters with their optimizer
        states, what layers keep for backward, and one layer while it is recomputed.
        """
        samples = rows["samples"] / rows["dp"]
        elements = samples * rows["tokens"] * rows["hidden"]
        scores = samples * 32 * rows["tokens"] ** 2 * values["score_bytes"]
        one_layer = rows["blocks_per_layer"] * (elements * values["block_bytes_per_element"] + scores) / rows["tp"]
        kept = rows["layers"] * elements * values["boundary_bytes_per_element"]
        logits = rows["heads"] * samples * rows["tokens"] * rows["vocabulary"] * values["logit_bytes"] / rows["tp"]
        states = rows["parameters"] / rows["tp"] * values["bytes_per_parameter"]
        return np.log(states + one_layer + kept + logits + values["start_bytes"]) + deviations["peak"]


def _ring_share(devices: Array) -> Array:
    """How many times its bytes a ring all-reduce of n devices sends through each link: 2 (n - 1) / n."""
    return 2 * (devices - 1) / devices
