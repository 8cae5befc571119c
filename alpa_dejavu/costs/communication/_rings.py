"""Messages that go at the same time: what each of them has of its link, and of what links share."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from alpa_dejavu.problem import Cluster

if TYPE_CHECKING:
    from jaxtyping import Float

Hop: TypeAlias = tuple[int, int]
"""A message from a device of one host to one of another, or of the same."""
Lines: TypeAlias = "Float[np.ndarray, 'k 2']"
"""Latency in seconds, and seconds per byte, of each of some messages."""


def lines(cluster: Cluster, hops: Iterable[Hop], members: Mapping[int, int], concurrent: int) -> Lines:
    """Returns the latency in seconds and the seconds per byte of each of a group's messages, all sent at the same
    time; only the k messages that may be the slowest for some number of bytes. `members` has how many devices
    of the group each host has.

    A link between hosts that names no shared medium is divided among all messages over it, of all groups that
    communicate at the same time. So is a host's network card, one for each direction, which is as fast as the fastest
    of its links in use. A medium that links share (`Link.shares`) is divided among all messages over any of them.
    """
    counted = Counter(hops)
    over: Counter[str] = Counter()
    for (a, b), count in counted.items():
        for medium in cluster.links[a][b].shares:
            over[medium] += count * concurrent
    size = sum(members.values())
    cards = _cards(cluster, counted, size)
    candidates = []
    for hop, count in counted.items():
        link = cluster.links[hop[0]][hop[1]]
        rate = link.group_bytes_per_s(members[hop[0]] if hop[0] == hop[1] else size)
        if link.shares:
            rate = min(rate, *(cluster.media.get(medium, link.bytes_per_s) / over[medium] for medium in link.shares))
        elif hop[0] != hop[1]:
            rate = min(rate / count, cards[hop[0], "out"], cards[hop[1], "in"]) / concurrent
        candidates.append((link.latency_s, 1 / rate))
    return _longest(candidates)


def _cards(cluster: Cluster, counted: Counter[Hop], size: int) -> dict[tuple[int, str], float]:
    """Bytes per second of each message out of a host, and into one: its fastest link's for all of a group's."""
    messages, fastest = Counter[tuple[int, str]](), dict[tuple[int, str], float]()
    for (a, b), count in counted.items():
        link = cluster.links[a][b]
        if a != b and not link.shares:
            for card in ((a, "out"), (b, "in")):
                messages[card] += count
                fastest[card] = max(fastest.get(card, 0.0), link.group_bytes_per_s(size))
    return {card: fastest[card] / count for card, count in messages.items()}


def _longest(candidates: Sequence[tuple[float, float]]) -> Lines:
    """Returns the lines without those that another one equals or exceeds in both figures."""
    kept: list[tuple[float, float]] = []
    for latency_s, per_byte in sorted(set(candidates), reverse=True):
        if not kept or per_byte > kept[-1][1]:
            kept.append((latency_s, per_byte))
    return np.array(kept)


_ALL_ORDERS = 6
"""Up to so many hosts every order is looked at."""
_STARTS = 16
_Cost: TypeAlias = tuple[float, float, float]


def ring_orders(cluster: Cluster, members: Mapping[int, int], concurrent: int) -> list[tuple[int, ...]]:
    """Returns the best orders of a group's hosts (indices) for a ring: that with the fastest slowest hop, and that with
    the least latency of its longest hop; only one order where both are the same.

    A ring goes one way round, so an order and its reverse are two. For more than six hosts only some orders are tried:
    those given, and those made from different starts by going on to the host with the best link among those that are
    left.
    """
    hosts = tuple(members)
    if len(hosts) < 3 or _all_equal(cluster, hosts):
        return [hosts]
    costs = {order: _cost(cluster, order, members, concurrent) for order in _candidates(cluster, hosts)}
    by_rate = min(costs, key=lambda order: costs[order])
    by_latency = min(costs, key=lambda order: (costs[order][1], costs[order][0]))
    return [by_rate] if by_latency == by_rate else [by_rate, by_latency]


def ring_hops(order: Sequence[int]) -> list[Hop]:
    """Returns the hops of a ring: pairs of a host and the next one, the last back to the first; none for one host."""
    return [(a, b) for a, b in zip(order, [*order[1:], order[0]], strict=True) if a != b]


def _all_equal(cluster: Cluster, hosts: Sequence[int]) -> bool:
    different = cluster.link_kinds.between(sorted(hosts))
    return len(different) == 1 and not different[0].shares


def _cost(cluster: Cluster, order: Sequence[int], members: Mapping[int, int], concurrent: int) -> _Cost:
    """Seconds per byte and latency of the slowest hops; then seconds per byte of all, so that slow ones are few."""
    hops = ring_hops(order)
    hop_lines = lines(cluster, hops, members, concurrent)
    every = math.fsum(1 / cluster.links[a][b].bytes_per_s for a, b in hops)
    return float(hop_lines[:, 1].max()), float(hop_lines[:, 0].max()), every


def _candidates(cluster: Cluster, hosts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if len(hosts) <= _ALL_ORDERS:
        yield from (hosts[:1] + rest for rest in itertools.permutations(hosts[1:]))
        return
    yield hosts
    yield hosts[::-1]
    stride = -(-len(hosts) // _STARTS)
    for start in hosts[::stride]:
        yield _greedy(cluster, hosts, start, forward=True)
        yield _greedy(cluster, hosts, start, forward=False)[::-1]


def _greedy(cluster: Cluster, hosts: Sequence[int], start: int, forward: bool) -> tuple[int, ...]:
    """From host to host by the best link that is left, or against the direction of the links."""
    order, left = [start], [host for host in hosts if host != start]

    def ahead(host: int) -> tuple[float, float]:
        last = order[-1]
        link = cluster.links[last][host] if forward else cluster.links[host][last]
        return link.bytes_per_s, -link.latency_s

    while left:
        order.append(max(left, key=ahead))
        left.remove(order[-1])
    return tuple(order)
