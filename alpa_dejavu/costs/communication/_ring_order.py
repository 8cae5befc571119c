"""In which order a ring goes around hosts: along fast links, and each slow one as seldom as can be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from alpa_dejavu.costs.communication._flows import Hop, lines
from alpa_dejavu.problem import Cluster

_ALL_ORDERS = 6
"""Up to so many hosts every order is looked at."""
_STARTS = 16
_Cost: TypeAlias = tuple[float, float, float]


def ring_orders(cluster: Cluster, members: Mapping[int, int], concurrent: int) -> list[tuple[int, ...]]:
    """Returns the best orders of a group's hosts (indices) for a ring: that with the fastest slowest hop, and that with
    the least latency; only one order where both are the same.

    An order's latency is that of its longest hop. A ring goes one way round, so an order and its reverse are two. For
    more than six hosts only some orders are tried: those given, and those made from different starts by going on to the
    host with the best link among those that are left.

    Args:
        cluster: the cluster with the links.
        members: how many devices of the group each host has, by the host's index.
        concurrent: how many such rings communicate at the same time.
    """
    hosts = tuple(members)
    if len(hosts) < 3 or _all_equal(cluster, hosts):
        return [hosts]
    costs = {order: _cost(cluster, order, members, concurrent) for order in _candidates(cluster, hosts)}
    by_rate = min(costs, key=lambda order: costs[order])
    by_latency = min(costs, key=lambda order: (costs[order][1], costs[order][0]))
    return [by_rate] if by_latency == by_rate else [by_rate, by_latency]


def around(order: Sequence[int]) -> list[Hop]:
    """Returns the hops of a ring as pairs of a host and the next one, the last back to the first; none for a single
    host.
    """
    return [(a, b) for a, b in zip(order, [*order[1:], order[0]], strict=True) if a != b]


def _all_equal(cluster: Cluster, hosts: Sequence[int]) -> bool:
    first = cluster.links[hosts[0]][hosts[1]]
    return not first.shares and all(cluster.links[a][b] == first for a in hosts for b in hosts if a != b)


def _cost(cluster: Cluster, order: Sequence[int], members: Mapping[int, int], concurrent: int) -> _Cost:
    """Seconds per byte and latency of the slowest hops; then seconds per byte of all, so that slow ones are few."""
    hops = around(order)
    found = lines(cluster, hops, members, concurrent)
    every = math.fsum(1 / cluster.links[a][b].bytes_per_s for a, b in hops)
    return float(found[:, 1].max()), float(found[:, 0].max()), every


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
        here = order[-1]
        link = cluster.links[here][host] if forward else cluster.links[host][here]
        return link.bytes_per_s, -link.latency_s

    while left:
        order.append(max(left, key=ahead))
        left.remove(order[-1])
    return tuple(order)
