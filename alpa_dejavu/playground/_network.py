"""Messages under way over a cluster's links at the same time, each with its max-min fair share of what it goes over.

Messages of one stream, which is what one source sends to one target, go one after the other, as over a connection of
TCP or a channel of NCCL: those behind the first one wait and have no share.

A rate changes only where it must: what starts or ends is settled among the messages that share something with it, and
others join as long as one of them has no bottleneck any more. So a message that shares nothing costs a constant.

References:
    Bertsekas and Gallager, Data Networks, second edition, 1992, section 6.5.2 (progressive filling; an allocation is
    max-min fair if and only if each message has a bottleneck).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, final

from alpa_dejavu.problem import Cluster

_SLACK = 1e-9
"""Rates that differ by less than this share are the same: sums of rates are rounded."""


@final
class Flow:
    """The bytes of one message on their way over some resources, with at most so many bytes per second; `told` is the
    caller's. Flows of one stream go one after the other; without a stream one goes at once.
    """

    __slots__ = ("bottleneck", "most", "number", "over", "rate", "remaining", "since_s", "stream", "told", "version")

    def __init__(self, over: tuple[int, ...], most: float, num_bytes: float, told: Any,
                 stream: Hashable | None = None) -> None:  # fmt: skip
        self.over, self.most, self.remaining, self.told = over, most, num_bytes, told
        self.stream: Any = self if stream is None else stream
        self.rate, self.since_s, self.bottleneck, self.number, self.version = 0.0, 0.0, -1, 0, 0


@final
class Network:
    """Resources with a capacity in bytes per second each, and the flows over them."""

    def __init__(self) -> None:
        self._capacity: list[float] = []
        self._on: list[dict[Flow, None]] = []
        self._ends: list[tuple[float, int, int, Flow]] = []
        self._dirty: dict[int, None] = {}
        self._alone: list[Flow] = []
        self._streams: dict[Hashable, deque[Flow]] = {}
        self._count = 0

    def add_resource(self, bytes_per_s: float) -> int:
        self._capacity.append(bytes_per_s)
        self._on.append({})
        return len(self._capacity) - 1

    def set_capacity(self, resource: int, bytes_per_s: float) -> None:
        """Changes what a resource has, from the next `settle` on; 0 stops all that goes over it."""
        self._capacity[resource] = bytes_per_s
        self._dirty[resource] = None

    def start(self, flow: Flow, now_s: float) -> None:
        """Adds a flow; it has a rate from the next `settle` on at which nothing of its stream is before it."""
        self._count += 1
        flow.number = self._count
        stream = self._streams.setdefault(flow.stream, deque())
        stream.append(flow)
        if len(stream) == 1:
            self._begin(flow, now_s)

    def busy(self, stream: Hashable) -> bool:
        return stream in self._streams

    def stop(self, stream: Hashable) -> None:
        """Removes all flows of a stream."""
        self._remove(self._streams.pop(stream)[0])

    def settle(self, now_s: float) -> None:
        """Gives all flows that what has changed touches their max-min fair rates."""
        for flow in self._alone:
            self._set(flow, flow.most, now_s)
        self._alone.clear()
        if self._dirty:
            chosen = dict.fromkeys(flow for resource in self._dirty for flow in self._on[resource])
            self._dirty.clear()
            more: Iterable[Flow] = chosen
            while chosen and more:
                rates, touched = self._filled(chosen)
                more = self._without_bottleneck(rates, touched)
                chosen.update(dict.fromkeys(more))
            if chosen:
                for flow, (rate, bottleneck) in rates.items():
                    flow.bottleneck = bottleneck
                    self._set(flow, rate, now_s)

    def next_s(self) -> float:
        """Returns when the next flow ends; infinity if none does."""
        while self._ends and self._ends[0][2] != self._ends[0][3].version:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else math.inf

    def pop(self) -> Flow:
        """Removes the flow that ends next, and returns it; of several at the same time, the one added first."""
        self.next_s()
        now_s, _, _, flow = heapq.heappop(self._ends)
        self._remove(flow)
        stream = self._streams[flow.stream]
        stream.popleft()
        if stream:
            self._begin(stream[0], now_s)
        else:
            del self._streams[flow.stream]
        return flow

    def flows(self) -> list[Flow]:
        """Returns the first flow of each stream, in the order in which they were added."""
        return sorted((stream[0] for stream in self._streams.values()), key=lambda flow: flow.number)

    def _begin(self, flow: Flow, now_s: float) -> None:
        flow.since_s = now_s
        for resource in flow.over:
            self._on[resource][flow] = None
            self._dirty[resource] = None
        if not flow.over:
            self._alone.append(flow)

    def _remove(self, flow: Flow) -> None:
        flow.version += 1
        for resource in flow.over:
            del self._on[resource][flow]
            self._dirty[resource] = None

    def _set(self, flow: Flow, rate: float, now_s: float) -> None:
        if rate == flow.rate:
            return
        flow.remaining = max(flow.remaining - flow.rate * (now_s - flow.since_s), 0.0)
        flow.rate, flow.since_s, flow.version = rate, now_s, flow.version + 1
        if rate > 0:
            heapq.heappush(self._ends, (now_s + flow.remaining / rate, flow.number, flow.version, flow))

    def _filled(self, chosen: dict[Flow, None]) -> tuple[dict[Flow, tuple[float, int]], dict[int, int]]:
        """Fills progressively: returns each chosen flow's rate beside the others, and the resource (-1: its own limit)
        that it can't have more of; and the resources that they go over.
        """
        counts: dict[int, int] = {}
        for flow in chosen:
            for resource in flow.over:
                counts[resource] = counts.get(resource, 0) + 1
        free = {}
        for resource, count in counts.items():
            on = self._on[resource]
            others = sum(flow.rate for flow in on if flow not in chosen) if count < len(on) else 0.0
            free[resource] = max(self._capacity[resource] - others, 0.0)
        touched, rates, waiting = dict(counts), dict[Flow, tuple[float, int]](), list(chosen)
        while waiting:
            share = {resource: free[resource] / count for resource, count in counts.items() if count}
            least = min(min(share.values(), default=math.inf), min(flow.most for flow in waiting))
            full = {resource for resource, rate in share.items() if rate == least}
            left = []
            for flow in waiting:
                narrow = next((resource for resource in flow.over if resource in full), None)
                if narrow is None and flow.most > least:
                    left.append(flow)
                    continue
                rates[flow] = least, -1 if narrow is None else narrow
                for resource in flow.over:
                    free[resource] = max(free[resource] - least, 0.0)
                    counts[resource] -= 1
            waiting = left
        return rates, touched

    def _without_bottleneck(self, rates: dict[Flow, tuple[float, int]], touched: dict[int, int]) -> list[Flow]:
        """Flows not just filled that lost their bottleneck, or have several beside them held back there."""
        unsettled: dict[Flow, None] = {}
        for resource, count in touched.items():
            on = self._on[resource]
            if count == len(on):
                continue
            outside = [flow for flow in on if flow not in rates]
            inside = [rates[flow] for flow in on if flow in rates]
            top = max(max(flow.rate for flow in outside), max(rate for rate, _ in inside))
            load = sum(flow.rate for flow in outside) + sum(rate for rate, _ in inside)
            full = load >= self._capacity[resource] * (1 - _SLACK)
            held_rates = [rate for rate, bottleneck in inside if bottleneck == resource]
            least = min(held_rates, default=math.inf) * (1 + _SLACK)
            for flow in outside:
                lost = flow.bottleneck == resource and not (full and flow.rate >= top * (1 - _SLACK))
                if flow.rate > least or lost or load > self._capacity[resource] * (1 + _SLACK):
                    unsettled[flow] = None
        return list(unsettled)


Path = tuple[float, float, tuple[int, ...]]
"""Latency in seconds, the most bytes per second of one message, and the resources that it shares with others."""


@final
class Paths:
    """The ways between workers over the cluster's own links, and the resources on them, made when they are first used.

    Within a host a worker has a port in each direction, of the link's rate; between hosts a message goes over the link
    and over both hosts' network cards, one in each direction, as fast as the fastest of their links. Where a link names
    media that it shares (`Link.shares`), a message goes over these instead. So does `costs.communication.Links` count.
    """

    def __init__(self, cluster: Cluster, hosts: Sequence[int], network: Network) -> None:
        self._cluster, self._hosts, self._network = cluster, hosts, network
        self._resources: dict[Hashable, int] = {}
        self._factor: dict[tuple[int, int], float] = {}
        self._known: dict[tuple[int, int], Path] = {}

    def path(self, source: int, target: int) -> Path:
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
        """Multiplies the rate between two hosts (both ways), or of a host's ports, by a factor; 0 cuts it."""
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
        return self._factor.get((self._hosts[source], self._hosts[target]), 1.0) == 0

    def _between(self, a: int, b: int) -> Path:
        link = self._cluster.links[a][b]
        own = self._resource(("link", a, b), link.bytes_per_s * self._factor.get((a, b), 1.0))
        if link.shares:
            media = [self._resource(("medium", name), self._cluster.media.get(name, link.bytes_per_s))
                     for name in link.shares]  # fmt: skip
            return link.latency_s, link.group_bytes_per_s(2), (own, *media)
        sender = self._resource(("card out", a), self._fastest(a, out=True))
        receiver = self._resource(("card in", b), self._fastest(b, out=False))
        return link.latency_s, link.group_bytes_per_s(2), (own, sender, receiver)

    def _fastest(self, host: int, out: bool) -> float:
        links = self._cluster.links
        ways = (links[host][n] if out else links[n][host] for n in range(len(links)) if n != host)
        return max(way.bytes_per_s for way in ways if not way.shares)

    def _resource(self, key: Hashable, bytes_per_s: float) -> int:
        if key not in self._resources:
            self._resources[key] = self._network.add_resource(bytes_per_s)
        return self._resources[key]
