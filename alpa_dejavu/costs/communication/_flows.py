"""Messages that go at the same time: what each of them has of its link, and of what links share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import Cluster

Hop: TypeAlias = tuple[int, int]
"""A message from a device of one host to one of another, or of the same."""
Lines: TypeAlias = NDArray[np.float64]
"""Latency in seconds, and seconds per byte, of each of some messages: shape (k, 2)."""


def lines(cluster: Cluster, hops: Iterable[Hop], members: Mapping[int, int], concurrent: int) -> Lines:
    """Returns the latency in seconds and the seconds per byte of each of a group's messages, all sent at the same time,
    shape (k, 2); only the k messages that may be the slowest for some number of bytes.

    A link between hosts that names no shared medium is divided among all messages over it, of all groups that
    communicate at the same time. So is a host's network card, one for each direction, which is as fast as the fastest
    of its links in use. A medium that links share (`Link.shares`) is divided among all messages over any of them.

    Args:
        cluster: the cluster with the links.
        hops: for each message of one group the indices of the hosts that send and receive it.
        members: how many devices of the group each host has, by the host's index.
        concurrent: how many such groups communicate on these hosts at the same time.
    """
    counted = Counter(hops)
    over: Counter[str] = Counter()
    for (a, b), count in counted.items():
        for medium in cluster.links[a][b].shares:
            over[medium] += count * concurrent
    size = sum(members.values())
    cards = _cards(cluster, counted, size)
    found = []
    for hop, count in counted.items():
        link = cluster.links[hop[0]][hop[1]]
        rate = link.group_bytes_per_s(members[hop[0]] if hop[0] == hop[1] else size)
        if link.shares:
            rate = min(rate, *(cluster.media.get(medium, link.bytes_per_s) / over[medium] for medium in link.shares))
        elif hop[0] != hop[1]:
            rate = min(rate / count, cards[hop[0], "out"], cards[hop[1], "in"]) / concurrent
        found.append((link.latency_s, 1 / rate))
    return _longest(found)


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


def _longest(found: Sequence[tuple[float, float]]) -> Lines:
    """Returns the lines without those that another one equals or exceeds in both figures."""
    kept: list[tuple[float, float]] = []
    for latency_s, per_byte in sorted(set(found), reverse=True):
        if not kept or per_byte > kept[-1][1]:
            kept.append((latency_s, per_byte))
    return np.array(kept)
