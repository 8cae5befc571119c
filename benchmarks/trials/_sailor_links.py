"""Collectives and transfers over links whose bandwidths Sailor fitted by the size of messages."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu.costs.communication import CommunicationModel, Group
from trials._folder import Folder, UnreadableError

__all__ = ["BandwidthFit", "FittedLinks"]

_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
_LEAST_SHARE = 0.02
"""The share of the largest rate below which a parabola isn't believed."""


@final
@dataclasses.dataclass(frozen=True)
class BandwidthFit:
    """A quadratic fit of a link's bandwidth by message size: a + b x + c x², in 1e9 bytes/s, x the binary logarithm of
    the message's MiB.

    For messages larger than at the parabola's vertex the bandwidth is that of the vertex.

    >>> fit = BandwidthFit.of([[-0.1, 1.0, 2.0], 4e9])
    >>> fit.bytes_per_s(2**20), fit.bytes_per_s(2**40)
    (2000000000.0, 4000000000.0)
    """

    coefficients: tuple[float, float, float]
    largest_bytes_per_s: float

    @classmethod
    def of(cls, published: Sequence[Any]) -> BandwidthFit:
        """Returns the bandwidth fit a + b x + c x² that is published as [[c, b, a], largest bytes/s].

        Raises:
            ValueError: it is something else.
        """
        try:
            (square, slope, start), largest = published
            return cls((float(start), float(slope), float(square)), float(largest))
        except (TypeError, ValueError) as error:
            raise ValueError(f"bandwidth fit: is {published}, but must be [[c, b, a], largest bytes/s]") from error

    def bytes_per_s(self, num_bytes: float) -> float:
        """Returns the bandwidth, in bytes per second, of one message of a number of bytes."""
        start, slope, square = self.coefficients
        place = float(np.log2(max(num_bytes, 1.0) / 2**20))
        if square < 0:
            place = min(place, -slope / 2 / square)
        rate = (start + slope * place + square * place**2) * 1e9
        return float(np.clip(rate, _LEAST_SHARE * self.largest_bytes_per_s, self.largest_bytes_per_s))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class FittedLinks(CommunicationModel):
    """A communication model by fits of bandwidths: rings and sends over the slowest link between neighbours.

    Groups that communicate at the same time share the links between hosts.

    Attributes:
        inside: the fits of a node's GPUs, by GPU and their number.
        between: those between nodes, by GPU, their number, the other node's GPU and their number.
    """

    inside: Mapping[str, Mapping[str, Any]]
    between: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, folder: Folder) -> FittedLinks:
        """Reads the fits of a folder."""
        names = "intra_node_bandwidth_fits", "network_fits_between"
        inside, between = (folder.document(f"sailor/{name}.json") for name in names)
        return cls(inside, between)

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
            return self._inside_bytes_per_s(gpu, count, num_bytes)
        abreast = group.concurrent * max(Counter(group.hosts).values())
        ends = (gpu, min(abreast, count)), (peer, min(abreast, peers))
        return self._between_bytes_per_s(ends, num_bytes) / group.concurrent

    def _inside_bytes_per_s(self, gpu: str, devices: int, num_bytes: float) -> float:
        """Of a collective of a node's GPUs."""
        fits = _of(self.inside, gpu, "intra_node_bandwidth_fits.json")
        enough = [int(count) for count in fits if int(count) >= devices] or [max(map(int, fits))]
        return BandwidthFit.of(fits[str(min(enough))]).bytes_per_s(num_bytes)

    def _between_bytes_per_s(self, ends: tuple[tuple[str, int], tuple[str, int]], num_bytes: float) -> float:
        """Between two nodes, of all GPUs of a node that take part together.

        More GPUs of a node are never slower than fewer: fits that say so (of one pair some are 25 times slower than the
        folder's README and the other counts say) give way to those with fewer.
        """
        rates = []
        for (gpu, count), (peer, peers) in (ends, ends[::-1]):
            fits = _of(self.between, gpu, "network_fits_between.json")
            for devices, by_peer in fits.items():
                for others, published in by_peer.get(peer, {}).items():
                    if int(devices) <= count and int(others) <= peers:
                        rates.append(BandwidthFit.of(published).bytes_per_s(num_bytes))
        if not rates:
            raise UnreadableError(f"network_fits_between.json: has no fit between {ends[0]} and {ends[1]}; add one")
        return max(rates)


def _around(hosts: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Neighbours on the ring, without those on one host where there are several hosts."""
    for pair in zip(hosts, [*hosts[1:], hosts[0]], strict=True):
        if pair[0] != pair[1] or len(set(hosts)) == 1:
            yield pair


def _of(fits: Mapping[str, Any], gpu: str, name: str) -> Mapping[str, Any]:
    if gpu not in fits:
        raise UnreadableError(f"{name}: has no GPU {gpu!r}, has {', '.join(fits)}; add its fit")
    found: Mapping[str, Any] = fits[gpu]
    return found
