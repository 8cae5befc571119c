"""All-reduces inside a host, as measured: a start, a round of messages, and the rate of the links."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np

from alpa_dejavu.costs.iteration._fit import fit
from alpa_dejavu.costs.iteration._hierarchical import Array, Parameter, Physics, Rows

__all__ = ["RingAllReduce", "ring_share"]


def ring_share(devices: Array) -> Array:
    """Returns how many times its bytes a ring all-reduce of n devices sends through each link: 2 (n - 1) / n.

    >>> ring_share(np.array([1.0, 2.0, 4.0])).tolist()
    [0.0, 1.0, 1.5]
    """
    return 2 * (devices - 1) / devices


@final
@dataclasses.dataclass(frozen=True)
class RingAllReduce:
    """A latency model of a ring all-reduce among n devices of one host: start_s + round_s * 2 (n - 1) +
    bytes * 2 (n - 1) / n / bytes_per_s.
    """

    start_s: float
    round_s: float
    bytes_per_s: float

    def seconds(self, num_bytes: Array, devices: Array) -> Array:
        """Returns the seconds of each ring all-reduce of a number of bytes among a number of devices; 0 for one
        device.
        """
        once = self.start_s + self.round_s * 2 * (devices - 1) + num_bytes * ring_share(devices) / self.bytes_per_s
        return np.where(devices > 1, once, 0.0)

    @classmethod
    def fit(cls, num_bytes: Array, devices: Array, seconds: Array) -> RingAllReduce:
        """Returns the model fitted to measured all-reduces of several sizes and numbers of devices; outliers weigh
        little.
        """
        values = fit(_Ring(), {"bytes": num_bytes, "devices": devices}, seconds, floor=0.03).values
        return cls(values["start_s"], values["round_s"], values["bytes_per_s"])


@final
class _Ring(Physics):
    parameters = (Parameter("start_s", 3e-5, 1.0), Parameter("round_s", 2e-6, 1.0), Parameter("bytes_per_s", 1e11, 1.5))
    deviations = ()

    def log_value(self, values: Mapping[str, float], deviations: Mapping[str, Array], rows: Rows) -> Array:
        """Returns the logarithm of the seconds of each row's ring all-reduce, shape (N,)."""
        return np.log(RingAllReduce(**values).seconds(rows["bytes"], rows["devices"]))
