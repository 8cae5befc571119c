"""How many devices may be left at each node of a graph: a table needs no other numbers.

By a price on each device, neither the least sum up to a node nor that from it on is below some line in the number of
devices left there. Of several prices the highest line counts. Both parts together are convex in that number: where a
way through the node may still be below a given sum, numbers follow each other, and they are few where prices say much.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import final

import numpy as np

from alpa_dejavu.slicing._branch import ROUNDING
from alpa_dejavu.slicing._graph import Graph
from alpa_dejavu.slicing._stages import IntArray

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
