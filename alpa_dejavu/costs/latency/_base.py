"""The interface of latency models."""

from __future__ import annotations

import abc
import dataclasses
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import Device, Operators


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Latency:
    """The predicted seconds of each operator; what is in a loop counts once for each trip.

    Mean and spread (one standard deviation) are in seconds, both of shape (number of operators,).
    """

    mean_s: NDArray[np.float64]
    spread_s: NDArray[np.float64]

    @property
    def total_s(self) -> float:
        """Returns the mean seconds of all operators, run one after the other."""
        return float(self.mean_s.sum())


class LatencyModel(abc.ABC):
    """A model that predicts how long operators take on a device; `alpa_dejavu.testing.check_latency_model` says if one
    is sound.
    """

    @abc.abstractmethod
    def predict(self, operators: Operators, device: Device) -> Latency:
        """Returns the predicted seconds of each operator on one device while the other devices of its host
        compute too.
        """
