"""In which order a stage's hosts are in its mesh: neighbours in a collective group are joined by fast links."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from alpa_dejavu.problem import Cluster

_ALL_ORDERS = 6
"""Up to so many hosts every order is looked at."""


def device_order(cluster: Cluster, hosts: Sequence[int], logical_mesh: Sequence[int]) -> tuple[int, ...]:
    """Returns the hosts of a stage, which has equally many devices on each, in the order in which its mesh takes them,
    so that neighbours in a ring have fast links.

    A mesh numbers its devices host after host, and a logical mesh, of (rows, columns), has them row by row: devices of
    a row are a tensor-parallel group, those of a column a data-parallel one. Rings and trees go by these numbers. The
    order is the one whose rings have the best slowest hops, along rows and along columns; then, since tensor-parallel
    groups talk for each micro-batch, along rows; and then the fewest slow hops. Beyond six hosts the order goes on from
    host to host by the best link that is left.

    >>> from alpa_dejavu.testing import example_cluster
    >>> device_order(example_cluster(num_hosts=4), [0, 2, 3], (3, 1))
    (0, 2, 3)
    """
    first = tuple(hosts)
    if len(first) < 3 or len(cluster.link_kinds.between(sorted(first))) == 1:
        return first
    return min(_orders(cluster, first), key=lambda order: _cost(cluster, order, logical_mesh))


def _orders(cluster: Cluster, hosts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The given one comes first: it stays where no other is better."""
    if len(hosts) <= _ALL_ORDERS:
        yield from itertools.permutations(hosts)
        return
    yield hosts
    for start in hosts:
        yield _greedy(cluster, hosts, start)


def _greedy(cluster: Cluster, hosts: Sequence[int], start: int) -> tuple[int, ...]:
    order, left = [start], [host for host in hosts if host != start]
    while left:
        last = order[-1]
        order.append(min(left, key=lambda host: _per_byte(cluster, last, host)))
        left.remove(order[-1])
    return tuple(order)


def _cost(cluster: Cluster, order: Sequence[int], logical_mesh: Sequence[int]) -> tuple[float, float, float]:
    """Seconds per byte of the slowest hops along rows and along columns, along rows alone, and of all hops."""
    rows, columns = (*logical_mesh, 1)[:2]
    per_host = rows * columns // len(order)
    devices = [host for host in order for _ in range(per_host)]
    along = [devices[row * columns : (row + 1) * columns] for row in range(rows)]
    across = [devices[column::columns] for column in range(columns)]
    # Only those that leave a host count.
    hops = [
        [_per_byte(cluster, a, b) for ring in rings for a, b in zip(ring, [*ring[1:], ring[0]], strict=True) if a != b]
        for rings in (along, across)
    ]
    slowest = [max(of_rings, default=0.0) for of_rings in hops]
    return sum(slowest), slowest[0], math.fsum(itertools.chain(*hops))


def _per_byte(cluster: Cluster, a: int, b: int) -> float:
    return 1 / cluster.links[a][b].bytes_per_s
