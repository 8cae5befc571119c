"""Forward and backward of one layer on many GPUs, learned from layers that were profiled on some of them.

What a kind of layer is off by goes with it from GPU to GPU (its shapes suit products or don't), and a GPU's own rates
go with it from model to model; so a model that was profiled on another GPU, or another model on this one, tell both
what this model on this GPU takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np

from fitting import Array, Deviation, Parameter, Physics, Rows

__all__ = ["LayerProfile"]

_SOFTNESS = 4.0


@final
@dataclasses.dataclass(frozen=True)
class LayerProfile(Physics):
    """Predicts the forward and backward seconds of one layer on many kinds of GPUs.

    Columns: gpu (place in `gpus`), flop and moved_bytes of one device, reduced_s (the all-reduces of its tensor
    parallelism over links as measured), log_hidden, log_tp, log_micro_batch. Transformer blocks and output layers
    (heads) are fitted separately.

    Attributes:
        gpus: the memory bandwidth of each kind of GPU in bytes per second, by its name.
    """

    gpus: Mapping[str, float]
    deviations = (
        Deviation("program", {"log_tp": 2.0, "log_hidden": 0.7}, 0.25, 0.02),
        Deviation("layer", {"gpu": 1e-3, "log_tp": 1.0, "log_micro_batch": 1.0, "log_hidden": 1.0}, 0.1, 0.02),
        Deviation("links", {"gpu": 1e-3, "log_tp": 1e-3}, 0.0, 0.4),
    )

    @property
    def parameters(self) -> tuple[Parameter, ...]:  # type: ignore[override]
        """Returns the parameters of the model of layers that are fitted: those of each kind of GPU, and those that all
        kinds share.
        """
        figures = (
            ("flop_per_s", 15e12, 1.0),
            ("memory_share", 0.7, 0.1),
            ("links_share", 0.5, 0.6),
            ("launch_s", 2e-3, 0.7),
        )
        own = [Parameter(f"{name}:{gpu}", start, spread) for name, start, spread in figures for gpu in self.gpus]
        return (*own, Parameter("moved_again", 3.0, 0.5))

    def log_value(self, values: Mapping[str, float], deviations: Mapping[str, Array], rows: Rows) -> Array:
        """Returns the logarithm of the predicted forward and backward seconds of each layer, shape (N,)."""
        launch = self._by_gpu(values, "launch_s", rows)
        device = self.device_s(values, deviations, rows)
        return np.asarray(np.log((launch**_SOFTNESS + device**_SOFTNESS) ** (1 / _SOFTNESS)))

    def device_s(self, values: Mapping[str, float], deviations: Mapping[str, Array], rows: Rows) -> Array:
        """Returns the seconds that the GPU computes and communicates for each layer, without the host's kernel
        launches.
        """
        memory = np.array(list(self.gpus.values()))[rows["gpu"].astype(int)] * self._by_gpu(
            values, "memory_share", rows
        )
        compute = rows["flop"] / self._by_gpu(values, "flop_per_s", rows)
        traffic = values["moved_again"] * rows["moved_bytes"] / memory
        reduced = rows["reduced_s"] / self._by_gpu(values, "links_share", rows) * np.exp(deviations["links"])
        return np.asarray((compute + traffic) * np.exp(deviations["program"] + deviations["layer"]) + reduced)

    def _by_gpu(self, values: Mapping[str, float], name: str, rows: Rows) -> Array:
        known = np.array([values[f"{name}:{gpu}"] for gpu in self.gpus])
        return np.asarray(known[rows["gpu"].astype(int)])
