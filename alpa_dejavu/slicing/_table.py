"""Devices counted: the least sum from each node of a graph on, for each number of devices that may be left; and prices.

A price on each device in place of their number gives a lower bound on all sums, and rules out stages. A way through the
graph may use any number of devices, but pays for each, and gets the price of all that there are. With exactly that many
it costs what it did: the least sum over all ways is a bound for any price, and the best price gives the best bound.

The corridor says which numbers of devices there may be left at each node; the dynamic program's table needs no others.
By a price on each device, neither the least sum up to a node nor that from it on is below some line in the number of
devices left there. Of several prices the highest line counts. Both parts together are convex in that number: where a
way through the node may still be below a given sum, numbers follow each other, and they are few where prices say much.

References:
    Handler and Zang, A dual algorithm for the constrained shortest path problem, Networks 10, 1980.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import final

import numpy as np

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu.slicing._base import Effort
from alpa_dejavu.slicing._branch import ROUNDING
from alpa_dejavu.slicing._graph import StageGraph
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

    graph: StageGraph
    num_devices: int
    fewest: IntArray
    most: IntArray

    @classmethod
    def whole(cls, graph: StageGraph, num_devices: int, exactly: bool) -> Corridor:
        """Returns a graph with ranges by which any number of devices may be left at a node, but none at the end, and if
        `exactly` all at the first layer.
        """
        fewest = np.zeros(len(graph.layers), dtype=np.int64)
        fewest[: graph.num_starts] = num_devices if exactly else 0
        return cls(graph, num_devices, fewest, np.where(graph.layers == graph.num_layers, 0, num_devices))

    def of(self, graph: StageGraph) -> Corridor:
        """Returns the same ranges for a graph that has only some of the arcs."""
        return Corridor(graph, self.num_devices, self.fewest, self.most)

    def narrowed(self, price: float, below: float) -> Corridor:
        """Returns the graph with ranges narrowed to those in which a path may have a summed weight below `below`;
        `price` is a device's price at which a cheapest path uses about all devices.
        """
        if not price or math.isinf(below):
            return self
        graph, prices, lines = self.graph, [share * price for share in SHARES], []
        for device_price in prices:
            keys = graph.weight + device_price * graph.size
            lines.append((device_price, graph.since(keys), graph.rest(keys)))
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
    """Returns whether the dynamic program's table, a number for each of the corridor, takes at most `most_bytes`."""
    used = np.zeros(len(corridor.most), dtype=np.bool_)
    used[corridor.graph.tail] = used[corridor.graph.head] = True
    return bool(8 * np.maximum(corridor.most - corridor.fewest + 1, 0)[used].sum() <= most_bytes)


def least_sum(corridor: Corridor) -> tuple[float, IntArray]:
    """Returns the least sum of weights over paths through the corridor's graph, and the arcs of the first such path;
    infinite, and no arcs, if there is none.
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
    """Returns the least sums from all nodes on; sets `ends`."""
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
    """Returns the least sum of the first nodes; sets the arcs of its way, and tells how many they are."""
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


STEPS = 16
"""The number of prices that are tried at most."""
TIGHT = 1e-4
"""A bound is good enough if no price is known to give one that is better by more than this fraction."""
FIRST, FARTHER = 0.05, 4.0
"""By which fraction a price is changed first, and how much more each time until it is too much."""


def best_price(
    graph: StageGraph, num_devices: int, exactly: bool, price: float = 0.0, enough: float = math.inf
) -> tuple[float, float]:
    """Returns a lower bound on the summed weight of paths that use the cluster's devices, and the device price that
    gives it.

    It is a Lagrangian relaxation: each arc costs its weight and the price of its devices.

    Args:
        graph: the graph.
        num_devices: how many devices there are.
        exactly: whether all have to be used; if not, no price is below zero.
        price: the first price that is tried.
        enough: the search ends with the first price whose bound is so large.
    """
    few: tuple[float, int] | None = None
    many: tuple[float, int] | None = None
    best, best_price, step = -math.inf, price, 0.0
    for _ in range(STEPS):
        keys = graph.weight + price * graph.size
        rest = graph.rest(keys)
        way = graph.way(keys, rest)
        if not way:
            return math.inf, price
        value = float(rest[: graph.num_starts].min()) - price * num_devices
        if value > best:
            best, best_price = value, price
        weight, used = float(graph.weight[way].sum()), int(graph.size[way].sum())
        if value >= enough or used == num_devices or (used < num_devices and price == 0 and not exactly):
            break
        few, many = ((weight, used), many) if used < num_devices else (few, (weight, used))
        if few and many:
            price = (few[0] - many[0]) / (many[1] - few[1])
            if few[0] + price * (few[1] - num_devices) - best <= TIGHT * abs(best):
                break
        else:
            if not step and not may_use(graph, num_devices, exactly):
                return math.inf, price
            step = FARTHER * step or FIRST * abs(price) or weight / num_devices or 1.0
            price += step if used > num_devices else -step
        if not exactly:
            price = max(price, 0.0)
    return best, best_price


def may_use(graph: StageGraph, num_devices: int, exactly: bool) -> bool:
    """Returns whether some path takes so many devices or fewer, and if `exactly` some so many or more, too."""
    fewest, most = (
        float(graph.rest(sign * graph.size)[: graph.num_starts].min(initial=math.inf)) for sign in (1.0, -1.0)
    )
    return fewest <= num_devices and (num_devices <= -most or not exactly)


def affordable(graph: StageGraph, num_devices: int, price: float, below: float) -> tuple[float, StageGraph]:
    """Returns a lower bound on the summed weight of paths, and the graph without arcs that no path has that uses
    `num_devices` devices and has a sum below `below`, as the price of each device tells.
    """
    keys = graph.weight + price * graph.size
    rest, refund = graph.rest(keys), price * num_devices
    through = graph.since(keys)[graph.tail] + keys + rest[graph.head] - refund
    least = float(rest[: graph.num_starts].min(initial=math.inf)) - refund
    return least, graph.of(through < below + ROUNDING * abs(refund))
