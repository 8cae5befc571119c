"""The dynamic program: the least sum from each node of a graph on, for each number of devices left."""

from __future__ import annotations

import math
from typing import final

import numpy as np

from alpa_dejavu.slicing._graph import Graph
from alpa_dejavu.slicing._stages import FloatArray

CHUNK = 65536
"""So many sums are made at a time: they should stay in the cache."""
MOST_BYTES = 2**31
"""No table is larger."""


@final
class Table:
    """A row of D + 1 sums for each node, each after as many infinite ones as the largest stage has devices.

    So what follows a stage is, for all numbers of devices at once, a row of its head moved by the stage's devices.
    """

    def __init__(self, graph: Graph, num_devices: int) -> None:
        self._graph, self._num_devices = graph, num_devices
        used = np.zeros(len(graph.layers), dtype=np.bool_)
        used[graph.tail] = used[graph.head] = True
        self._row = np.cumsum(used) - 1
        margin = int(graph.size.max(initial=0))
        sums = np.full((int(used.sum()), margin + num_devices + 1), np.inf)
        sums[self._row[used & (graph.layers == graph.num_layers)], margin] = 0.0
        self._flat, self._sums = sums.reshape(-1), sums[:, margin:]
        self._after = self._row[graph.head] * sums.shape[1] + margin - graph.size
        self._fill()

    @staticmethod
    def fits(graph: Graph, num_devices: int) -> bool:
        """Whether the table of a graph isn't too large."""
        num_rows = 1 + np.count_nonzero(np.bincount(graph.tail))
        return bool(num_rows * (num_devices + 1 + graph.size.max(initial=0)) * 8 <= MOST_BYTES)

    def _fill(self) -> None:
        graph, width = self._graph, self._num_devices + 1
        windows: FloatArray = np.ndarray(
            (max(len(self._flat) - width + 1, 0), width), buffer=self._flat, strides=(8, 8)
        )
        weight, step = graph.weight[:, None], max(1, CHUNK // width)
        for node in range(len(graph.layers) - 1, -1, -1):
            best, end = self._sums[self._row[node]], graph.leaving[node + 1]
            for begin in range(graph.leaving[node], end, step):
                some = slice(begin, min(begin + step, end))
                sums = windows[self._after[some]]
                sums += weight[some]
                np.minimum(best, sums.min(axis=0), out=best)

    def way(self, exactly: bool) -> tuple[float, list[int]]:
        """The least sum (infinite if there is none), and the arcs of a way that has it: the first of equals.

        It uses exactly the number of devices, or at most so many.
        """
        graph, fewest = self._graph, self._num_devices if exactly else 0
        begins = [n for n in range(graph.num_starts) if graph.leaving[n] < graph.leaving[n + 1]]
        ends = self._sums[self._row[begins], fewest:] if begins else np.full((1, 1), np.inf)
        begin, left = divmod(int(ends.argmin()), ends.shape[1])
        least = float(ends[begin, left])
        if math.isinf(least):
            return least, []
        node, left, arcs = begins[begin], left + fewest, list[int]()
        while graph.layers[node] < graph.num_layers:
            part = slice(graph.leaving[node], graph.leaving[node + 1])
            arcs.append(part.start + int((graph.weight[part] + self._flat[self._after[part] + left]).argmin()))
            node, left = int(graph.head[arcs[-1]]), left - int(graph.size[arcs[-1]])
        return least, arcs
