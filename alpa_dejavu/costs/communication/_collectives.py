"""Measured collectives as columns: what takes part, and what goes through the narrowest place."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Collectives:
    """A table of measured collectives as columns of shape (rows,); in a row several equal groups may run at the same
    time.

    Attributes:
        name: all_reduce, all_gather, reduce_scatter or all_to_all.
        num_bytes: the bytes of the whole tensor: what each device holds before an all-reduce or a reduce-scatter, and
            after an all-gather; what all devices together hold for an all-to-all.
        size: how many devices are in a group.
        hosts: how many hosts a group spans.
        sharing: how many groups share the network of a host.
        lanes: bytes per second that a device has to the others of its group (within a host), or a host to other hosts.
    """

    name: NDArray[np.str_]
    num_bytes: Array
    size: Array
    hosts: Array
    sharing: Array
    lanes: Array

    def take(self, index: NDArray[np.bool_] | NDArray[np.int64]) -> Collectives:
        """Returns the table with only some of its measured collectives, chosen by a boolean mask or by indices."""
        return Collectives(*(getattr(self, field.name)[index] for field in dataclasses.fields(self)))

    @property
    def across(self) -> NDArray[np.bool_]:
        """Returns which collectives run in groups that span several hosts, shape (rows,)."""
        return self.hosts > 1

    @property
    def volume_s(self) -> Array:
        """Returns the seconds that each collective's bytes take at the full rate of the narrowest link, shape (rows,):
        that of a device, or between hosts that of a host.

        Rings of n devices pass (n-1)/n of the tensor through each device and out of each host, an all-reduce twice; for
        an all-reduce across hosts n is the number of hosts, as with trees. In an all-to-all each device sends its share
        to the others, and a host what its devices send out.
        """
        summed = self.name == "all_reduce"
        parts = np.where(self.across & summed, self.hosts, self.size)
        ring = np.where(summed, 2.0, 1.0) * (parts - 1) / parts
        per_host = self.size / self.hosts
        sent = np.where(self.across, per_host * (self.size - per_host), self.size - 1) / self.size**2
        volume = np.where(self.name == "all_to_all", sent, ring) * self.num_bytes
        return np.asarray(volume * np.where(self.across, self.sharing, 1) / self.lanes)

    @property
    def hops(self) -> tuple[Array, Array]:
        """Returns how many messages each measured collective sends one after the other: between hosts, and within them.

        What goes around a ring passes from host to host once for each host; an all-reduce goes around twice. In an
        all-to-all a device sends to all others in turn.
        """
        rounds = np.where(self.name == "all_reduce", 2.0, 1.0)
        per_host = self.size / self.hosts
        leaving = np.where(self.across, self.hosts * (self.size - 1) / self.size, 0.0)
        ring = rounds * leaving, rounds * (self.size - 1 - leaving)
        each = self.size - per_host, per_host - 1
        exchanged = self.name == "all_to_all"
        return np.where(exchanged, each[0], ring[0]), np.where(exchanged, each[1], ring[1])

    def __len__(self) -> int:
        return len(self.name)
