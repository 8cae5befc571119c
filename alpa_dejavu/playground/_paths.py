"""The ways of messages from worker to worker, over the cluster's own links."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import final

from alpa_dejavu.playground._network import Network
from alpa_dejavu.problem import Cluster

Path = tuple[float, float, tuple[int, ...]]
"""Latency in seconds, the most bytes per second of one message, and the resources that it shares with others."""


@final
class Paths:
    """The ways between workers, and the resources on them, which are made when they are first used.

    Within a host a worker has a port in each direction, of the link's rate; between hosts a message goes over the link
    and over both hosts' network cards, one in each direction, as fast as the fastest of their links. Where a link names
    media that it shares (`Link.shares`), a message goes over these instead. So does `costs.communication.Links` count.

    Args:
        cluster: the cluster with the links.
        hosts: for each worker the index of its host.
        network: the network that the resources are added to.
    """

    def __init__(self, cluster: Cluster, hosts: Sequence[int], network: Network) -> None:
        self._cluster, self._hosts, self._network = cluster, hosts, network
        self._resources: dict[Hashable, int] = {}
        self._factor: dict[tuple[int, int], float] = {}
        self._known: dict[tuple[int, int], Path] = {}

    def path(self, source: int, target: int) -> Path:
        """Returns the way of a message from one worker to another one; none takes time to a worker itself."""
        if source == target:
            return 0.0, math.inf, ()
        a, b = self._hosts[source], self._hosts[target]
        link = self._cluster.links[a][b]
        if a == b and not link.shares:
            port = link.bytes_per_s * self._factor.get((a, a), 1.0)
            out, into = self._resource(("out", source), port), self._resource(("in", target), port)
            return link.latency_s, link.group_bytes_per_s(2), (out, into)
        if (a, b) not in self._known:
            self._known[a, b] = self._between(a, b)
        return self._known[a, b]

    def scale(self, a: int, b: int, factor: float) -> None:
        """Multiplies the rate of the link between two hosts, in both directions, or of the ports within one, by a
        factor of its own rate; 0 cuts it.
        """
        for pair in dict.fromkeys(((a, b), (b, a))):
            self._factor[pair] = factor
            if a == b and not self._cluster.links[a][a].shares:
                workers = [worker for worker, host in enumerate(self._hosts) if host == a]
                keys: list[Hashable] = [(way, worker) for worker in workers for way in ("out", "in")]
            else:
                self._known.pop(pair, None)
                keys = [("link", *pair)]
                self._resource(keys[0], self._cluster.links[pair[0]][pair[1]].bytes_per_s)
            for key in keys:
                if key in self._resources:
                    rate = self._cluster.links[pair[0]][pair[1]].bytes_per_s * factor
                    self._network.set_capacity(self._resources[key], rate)

    def cut(self, source: int, target: int) -> bool:
        """Returns whether nothing gets from a worker to another one now."""
        return self._factor.get((self._hosts[source], self._hosts[target]), 1.0) == 0

    def _between(self, a: int, b: int) -> Path:
        link = self._cluster.links[a][b]
        own = self._resource(("link", a, b), link.bytes_per_s * self._factor.get((a, b), 1.0))
        if link.shares:
            media = [self._resource(("medium", name), self._cluster.media.get(name, link.bytes_per_s))
                     for name in link.shares]  # fmt: skip
            return link.latency_s, link.group_bytes_per_s(2), (own, *media)
        cards = (
            self._resource(("card out", a), self._fastest(a, out=True)),
            self._resource(("card in", b), self._fastest(b, out=False)),
        )
        return link.latency_s, link.group_bytes_per_s(2), (own, *cards)

    def _fastest(self, host: int, out: bool) -> float:
        links = self._cluster.links
        ways = [links[host][n] if out else links[n][host] for n in range(len(links)) if n != host]
        return max(way.bytes_per_s for way in ways if not way.shares)

    def _resource(self, key: Hashable, bytes_per_s: float) -> int:
        if key not in self._resources:
            self._resources[key] = self._network.add_resource(bytes_per_s)
        return self._resources[key]
