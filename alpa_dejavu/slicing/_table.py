"""The dynamic program: the least sum from each node of a graph on, for each number of devices that may be left.

The corridor says which of these numbers there may be at each node; the table needs no others. By a price on each
device, neither the least sum up to a node nor that from it on is below some line in the number of devices left there.
Of several prices the highest line counts. Both parts together are convex in that number: where a way through the node
may still be below a given sum, numbers follow each other, and they are few where prices say much.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import final

import numpy as np

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu.slicing._branch import ROUNDING
from alpa_dejavu.slicing._effort import Effort
from alpa_dejavu.slicing._graph import Graph
from alpa_dejavu.slicing._stages import FloatArray, IntArray

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
"""The prices that are tried, as parts of the best one: at the ends of a way a device may be worth more, or less."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Corridor:
    """A graph whose arcs are stages, with the range of how many devices may be left over at each node.

    Attributes:
        graph: the graph, of N nodes.
        num_devices: how many devices there are.
        fewest: shape (N,), at least so many devices are left over at a node.
        most: shape (N,), at most so many are; fewer than `fewest` where no path leads through a node.
    """

    graph: Graph
    num_devices: int
    fewest: IntArray
    most: IntArray

    @classmethod
    def whole(cls, graph: Graph, num_devices: int, exactly: bool) -> Corridor:
        """Returns a graph with ranges by which any number of devices may be left at a node, but none at the end.

        If `exactly`, all devices are left at the first layer.
        """
        fewest = np.zeros(len(graph.layers), dtype=np.int64)
        fewest[: graph.num_starts] = num_devices if exactly else 0
        return cls(graph, num_devices, fewest, np.where(graph.layers == graph.num_layers, 0, num_devices))

    def of(self, graph: Graph) -> Corridor:
        """Returns the same ranges of devices left at the nodes for a graph that has only some of the arcs (stages)."""
        return Corridor(graph, self.num_devices, self.fewest, self.most)

    def narrowed(self, price: float, below: float) -> Corridor:
        """Returns the graph with ranges of left devices narrowed to those in which a path, a slicing, may have a summed
        weight below `below`.

        `price` is a price of a device at which a cheapest path uses about all devices.
        """
        if not price or math.isinf(below):
            return self
        graph, prices, lines = self.graph, [share * price for share in SHARES], []
        for each in prices:
            keys = graph.weight + each * graph.size
            lines.append((each, graph.since(keys), graph.rest(keys)))
        spare = below + ROUNDING * (abs(below) + 2 * max(map(abs, prices)) * self.num_devices)
        fewest, most = self.fewest.astype(np.float64), self.most.astype(np.float64)
        for (paid, since, _), (asked, _, rest) in itertools.permutations(lines, 2):
            left = (spare - since - rest + paid * self.num_devices) / (paid - asked)
            if paid > asked:
                np.minimum(most, np.floor(left), out=most)
            else:
                np.maximum(fewest, np.ceil(left), out=fewest)
        return self._within(
            np.minimum(fewest, self.num_devices + 1).astype(np.int64), np.maximum(most, -1).astype(np.int64)
        )

    def _within(self, fewest: IntArray, most: IntArray) -> Corridor:
        """Returns the corridor without arcs whose ends don't have numbers that suit each other."""
        graph = self.graph
        tail, head, size = graph.tail, graph.head, graph.size
        meet = np.maximum(fewest[tail], fewest[head] + size) <= np.minimum(most[tail], most[head] + size)
        return Corridor(graph.of(meet), self.num_devices, fewest, most)


def fits(corridor: Corridor, most_bytes: int = Effort.most_table_bytes) -> bool:
    """Returns whether the dynamic program's table, an entry for each node of a graph and each number of devices that
    may be left over there, takes no more than `most_bytes`.
    """
    used = np.union1d(corridor.graph.tail, corridor.graph.head)
    return bool(8 * np.maximum(corridor.most[used] - corridor.fewest[used] + 1, 0).sum() <= most_bytes)


def least_sum(corridor: Corridor) -> tuple[float, IntArray]:
    """Returns the least sum of weights over paths through a graph whose arcs are stages, and the arcs of that path.

    The corridor says which numbers of devices may be left over at each node. Without any path the sum is infinite, and
    there are no arcs. Of equal paths it is the first.
    """
    graph, fewest = corridor.graph, corridor.fewest
    arrays = graph.tail, graph.head, graph.size, graph.weight
    ends, arcs = np.empty(len(fewest), dtype=np.int64), np.empty(graph.num_layers, dtype=np.int64)
    sums = _table(*arrays, graph.layers, graph.num_layers, fewest, corridor.most, ends)
    least, count = _way(*arrays, graph.layers, fewest, ends, sums, arcs)
    return least, arcs[:count]


# A node that arcs leave or come to has a row in the table, of all numbers of devices that may be left there, from the
# fewest on; `ends` tells where it ends.


@compiled("(i8[::1], i8[::1], i8[::1], f8[::1], i8[::1], i8, i8[::1], i8[::1], i8[::1])")
def _table(
    tail: IntArray,
    head: IntArray,
    size: IntArray,
    weight: FloatArray,
    layers: IntArray,
    num_layers: int,
    fewest: IntArray,
    most: IntArray,
    ends: IntArray,
) -> FloatArray:
    """The least sums from all nodes on; sets `ends`."""
    used = np.zeros(len(layers), np.bool_)
    for arc in range(len(tail)):
        used[tail[arc]] = used[head[arc]] = True
    end = 0
    for node in range(len(layers)):
        end += max(most[node] - fewest[node] + 1, 0) if used[node] else 0
        ends[node] = end
    sums = np.full(end, np.inf)
    for node in range(len(layers)):
        if layers[node] == num_layers and used[node] and most[node] >= fewest[node]:
            sums[ends[node] - 1] = 0.0
    for arc in range(len(tail) - 1, -1, -1):
        node, after = tail[arc], head[arc]
        # How much the fewest that are left behind the stage are above the fewest there.
        above = fewest[node] - size[arc] - fewest[after]
        row = sums[(ends[node - 1] if node else 0) + max(-above, 0) : ends[node]]
        rest = sums[ends[after - 1] + max(above, 0) : ends[after]]
        own = weight[arc]
        for n in range(min(len(row), len(rest))):
            total = rest[n] + own
            row[n] = total if total < row[n] else row[n]
    return sums


@compiled("(i8[::1], i8[::1], i8[::1], f8[::1], i8[::1], i8[::1], i8[::1], f8[::1], i8[::1])")
def _way(
    tail: IntArray,
    head: IntArray,
    size: IntArray,
    weight: FloatArray,
    layers: IntArray,
    fewest: IntArray,
    ends: IntArray,
    sums: FloatArray,
    arcs: IntArray,
) -> tuple[float, int]:
    """The least sum of the first nodes; sets the arcs of its way, and tells how many they are."""
    node, left, count, least, best = -1, 0, 0, np.inf, np.inf
    begin = 0
    for start in range(len(layers)):
        if layers[start] > 0:
            break
        for n in range(begin, ends[start]):
            if sums[n] < least:
                node, left, least = start, fewest[start] + n - begin, sums[n]
        begin = ends[start]
    for arc in range(len(tail)):
        # The arcs of a node follow each other: behind them it goes on from the best one's head.
        if best < np.inf and tail[arc] != node:
            left -= size[arcs[count]]
            node, best = head[arcs[count]], np.inf
            count += 1
        if tail[arc] == node:
            n = left - size[arc] - fewest[head[arc]]
            place = ends[head[arc] - 1] + n
            if n >= 0 and place < ends[head[arc]] and weight[arc] + sums[place] < best:
                best, arcs[count] = weight[arc] + sums[place], arc
    return least, count + (best < np.inf)
