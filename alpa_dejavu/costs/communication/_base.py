"""The interface of communication models."""

from __future__ import annotations

import abc
import dataclasses
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu.problem import Cluster

RING_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""The collectives that go around a ring, and how often: a pass of n devices is n-1 rounds of 1/n of the bytes each."""
COLLECTIVES = (*RING_PASSES, "all_to_all", "send")
"""The collectives that can be asked for. "send" goes from the first device of a group to the last."""
MEASURED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""The collectives that calibrations measure, fit and keep; the others go by links alone."""


@final
@dataclasses.dataclass(frozen=True)
class Group:
    """A group of devices that communicate: the index of each one's host in the cluster, and how many such groups run
    the same collective at the same time (`concurrent`).
    """

    cluster: Cluster
    hosts: tuple[int, ...]
    concurrent: int = 1

    def __post_init__(self) -> None:
        if not self.hosts or not all(0 <= host < len(self.cluster.hosts) for host in self.hosts):
            raise ValueError(f"group: hosts is {self.hosts}, but must name hosts 0..{len(self.cluster.hosts) - 1}")
        if self.concurrent < 1:
            raise ValueError(f"group: concurrent is {self.concurrent}, but at least one group takes part")

    @property
    def size(self) -> int:
        """Returns how many devices take part in the group's collectives."""
        return len(self.hosts)


class CommunicationModel(abc.ABC):
    """A model that predicts the seconds of collectives; `alpa_dejavu.testing.check_communication_model` says if one is
    sound.
    """

    @abc.abstractmethod
    def seconds(self, collective: str, num_bytes: ArrayLike, group: Group) -> NDArray[np.float64]:
        """Returns the predicted seconds of one collective of a group for each size in bytes, in the shape of
        `num_bytes`.

        Args:
            collective: its name, one of `COLLECTIVES`.
            num_bytes: the bytes of the whole tensor: what each device holds before an all-reduce or reduce-scatter, and
                after an all-gather; what one device holds for an all-to-all; what is sent.
            group: the devices. A group of one takes no time, except for "send", where the tensor stays on its device.
        """
