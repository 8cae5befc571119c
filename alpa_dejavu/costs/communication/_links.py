"""The alpha-beta model over the links that a group really has: rings along fast links, in one level or in two."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu.costs.communication._alpha_beta import COLLECTIVES, RING_PASSES, CommunicationModel, Group
from alpa_dejavu.costs.communication._rings import Lines, lines, ring_hops, ring_orders
from alpa_dejavu.problem import Cluster


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Rounds:
    """Rounds of messages one after the other, each as long as its longest: `lines` by the number of bytes."""

    rounds: float
    share: float
    """The share of the tensor's bytes that one message has."""
    lines: Lines

    def seconds(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        longest = np.zeros_like(sizes)
        for latency_s, per_byte in self.lines.tolist():
            np.maximum(longest, latency_s + self.share * sizes * per_byte, out=longest)
        return self.rounds * longest


_Way: TypeAlias = Sequence[_Rounds]
"""An algorithm: steps one after the other."""
_Key: TypeAlias = tuple[int, tuple[int, ...], int, str]


@final
@dataclasses.dataclass(frozen=True)
class Links(CommunicationModel):
    """An alpha-beta model of collectives by the fastest of several algorithms, over the links between the devices of a
    group in the directions that messages take.

    A ring takes hosts in the order with the fastest slowest hop, so that it crosses a slow cut once in each direction
    and no more. Where every host has equally many devices of the group, a second algorithm has two levels: within each
    host, then a ring of hosts for each of its devices, and within again, as NCCL's hierarchical collectives do. Each
    round takes as long as its slowest message. An all-to-all sends from each device to all others in turn. A send goes
    by the link from the first device's host to the last one's.

    A link between hosts is divided among groups that communicate at the same time; if it names media that it shares
    with other links (`Link.shares`), each medium is divided among all messages over it instead. Where all links between
    hosts are alike and share nothing, a group within a host, or with one device in each of its hosts, takes as long as
    `AlphaBeta` says.

    References:
        Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH,
        IJHPCA 19(1), 2005 (rings, and the alpha-beta model).
        Jeaugey, Massively Scale Your Deep Learning Training with NCCL 2.4, NVIDIA, 2019 (in two levels).
    """

    _known: dict[_Key, tuple[Cluster, Sequence[_Way]]] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def seconds(self, collective: str, num_bytes: ArrayLike, group: Group) -> NDArray[np.float64]:
        """Returns the seconds of one collective of a group for each size in bytes, in the shape of `num_bytes`."""
        if collective not in COLLECTIVES:
            raise ValueError(f"there is no collective {collective!r}; choose one of {', '.join(COLLECTIVES)}")
        sizes = np.asarray(num_bytes, dtype=np.float64)
        if collective == "send":
            latency_s, per_byte = _sending(group)
            return np.where(sizes > 0, latency_s + sizes * per_byte, 0.0)
        if group.size == 1:
            return np.zeros_like(sizes)
        best = np.full_like(sizes, np.inf)
        for way in self._ways(collective, group):
            np.minimum(best, sum((step.seconds(sizes) for step in way), np.zeros_like(sizes)), out=best)
        return np.where(sizes > 0, best, 0.0)

    def _ways(self, collective: str, group: Group) -> Sequence[_Way]:
        """Returns a collective's ways in a group; they don't depend on the bytes, and are kept for the next time."""
        # Rings put the hosts in an order of their own; an all-to-all goes by that of the devices.
        hosts = group.hosts if collective == "all_to_all" else tuple(sorted(group.hosts))
        key = id(group.cluster), hosts, group.concurrent, collective
        if key not in self._known:
            # The cluster is kept, so that no other one gets its id.
            self._known[key] = group.cluster, _ways(collective, group)
        return self._known[key][1]


def _sending(group: Group) -> tuple[float, float]:
    """Returns the latency, and the seconds per byte, from the first device to the last."""
    cluster = group.cluster
    link = cluster.links[group.hosts[0]][group.hosts[-1]]
    latency_s, rate = link.sending_from(min(group.members.values()), group.concurrent)
    if not link.shares:
        return latency_s, group.concurrent / rate
    media = [cluster.media.get(medium, link.bytes_per_s) / group.concurrent for medium in link.shares]
    return latency_s, 1 / min(rate, *media)


def _ways(collective: str, group: Group) -> list[_Way]:
    if collective == "all_to_all":
        return [_exchange(group)]
    passes = RING_PASSES[collective]
    members = dict(sorted(group.members.items()))
    counts = set(members.values())
    ways = [_flat(group, members, order, passes) for order in ring_orders(group.cluster, members, group.concurrent)]
    if len(members) > 1 and len(counts) == 1 and counts != {1}:
        abreast = group.concurrent * counts.pop()
        orders = ring_orders(group.cluster, dict.fromkeys(members, 1), abreast)
        ways += [_two_levels(group, members, order, passes) for order in orders]
    return ways


def _flat(group: Group, members: Mapping[int, int], order: Sequence[int], passes: int) -> _Way:
    """One ring through all devices, those of a host one after the other."""
    inside = [(host, host) for host in order for _ in range(members[host] - (len(order) > 1))]
    hops = lines(group.cluster, inside + ring_hops(order), members, group.concurrent)
    return [_Rounds(passes * (group.size - 1), 1 / group.size, hops)]


def _two_levels(group: Group, members: Mapping[int, int], order: Sequence[int], passes: int) -> _Way:
    """Rings within all hosts at a time; and for the share of each device of a host a ring of the hosts."""
    per_host = group.size // len(order)
    inside = [(host, host) for host in order for _ in range(per_host)]
    within = lines(group.cluster, inside, members, group.concurrent)
    across = lines(group.cluster, ring_hops(order), dict.fromkeys(order, 1), group.concurrent * per_host)
    return [
        _Rounds(passes * (per_host - 1), 1 / per_host, within),
        _Rounds(passes * (len(order) - 1), 1 / group.size, across),
    ]


def _exchange(group: Group) -> _Way:
    """Returns the rounds of an all-to-all: in round k each device sends its share to the k-th after it."""
    members, size = group.members, group.size
    steps = []
    for ahead in range(1, size):
        hops = [(host, group.hosts[(n + ahead) % size]) for n, host in enumerate(group.hosts)]
        steps.append(_Rounds(1, 1 / size, lines(group.cluster, hops, members, group.concurrent)))
    return steps
