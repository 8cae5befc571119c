"""Collectives and transfers over links whose bandwidths were fitted by the size of messages (Sailor)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu.costs.communication import CommunicationModel, Group
from trials._sailor_parts import Parts

_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


@final
@dataclasses.dataclass(frozen=True, eq=False)
class FittedLinks(CommunicationModel):
    """A communication model by fits of bandwidths: rings and sends over the slowest link between neighbours.

    Groups that communicate at the same time share the links between hosts.
    """

    parts: Parts

    def seconds(self, collective: str, num_bytes: ArrayLike, group: Group) -> NDArray[np.float64]:
        """The seconds of one collective for each size in bytes."""
        sizes = np.asarray(num_bytes, dtype=np.float64)
        if collective == "send":
            moved, pairs = sizes, {(group.hosts[0], group.hosts[-1])}
        elif collective in _PASSES:
            moved = sizes * _PASSES[collective] * (group.size - 1) / group.size
            pairs = set(_around(group.hosts))
        else:
            raise ValueError(f"there are no fits of {collective!r}; give one of send, {', '.join(_PASSES)}")
        if group.size < 2 or not moved.any():
            return np.zeros_like(sizes)
        hosts, alike = group.cluster.hosts, dict[tuple[object, ...], tuple[int, int]]()
        for a, b in pairs:
            ends = (hosts[a].device, hosts[a].num_devices), (hosts[b].device, hosts[b].num_devices)
            alike.setdefault((a == b, *ends), (a, b))
        slowest = np.zeros_like(sizes)
        for place, one in np.ndenumerate(sizes):
            slowest[place] = max(1 / self._rate(group, pair, float(one)) for pair in alike.values())
        return np.asarray(moved * slowest)

    def _rate(self, group: Group, pair: tuple[int, int], num_bytes: float) -> float:
        """Bytes per second that one of the groups has between two hosts, or within one."""
        (gpu, count), (peer, peers) = (
            (host.device.name, host.num_devices) for host in map(group.cluster.hosts.__getitem__, pair)
        )
        if pair[0] == pair[1]:
            return self.parts.inside_bytes_per_s(gpu, count, num_bytes)
        abreast = group.concurrent * max(Counter(group.hosts).values())
        ends = (gpu, min(abreast, count)), (peer, min(abreast, peers))
        return self.parts.between_bytes_per_s(ends, num_bytes) / group.concurrent


def _around(hosts: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Neighbours on the ring, without those on one host where there are several hosts."""
    for pair in zip(hosts, [*hosts[1:], hosts[0]], strict=True):
        if pair[0] != pair[1] or len(set(hosts)) == 1:
            yield pair
