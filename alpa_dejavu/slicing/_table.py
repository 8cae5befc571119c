"""The dynamic program: the least sum from each node of a graph on, for each number of devices that may be left."""

from __future__ import annotations

import math
from typing import final

import numpy as np

from alpa_dejavu.slicing._corridor import Corridor
from alpa_dejavu.slicing._stages import FloatArray, IntArray

CHUNK = 65536
"""So many sums are made at a time: they should stay in the cache."""
MOST_BYTES = 2**31
"""No table is larger."""


@final
class Table:
    """A row of sums for each node, with as many infinite ones between rows as any stage looks past the end of one.

    So what follows a stage is, for all numbers of devices at once, a piece of its head's row, as long as its tail's.
    """

    def __init__(self, corridor: Corridor) -> None:
        self._graph, self._fewest = corridor.graph, corridor.fewest
        self._widths, gap = _layout(corridor)
        rows = np.cumsum(np.where(self._widths > 0, self._widths + gap, 0))
        self._sums: FloatArray = np.full(gap + int(rows.max(initial=0)), np.inf)
        self._row = rows - self._widths
        graph = self._graph
        ends = np.flatnonzero((graph.layers == graph.num_layers) & (self._widths > 0))
        self._sums[self._row[ends] - self._fewest[ends]] = 0.0
        self._after = self._row[graph.head] + self._fewest[graph.tail] - graph.size - self._fewest[graph.head]
        self._fill()

    @staticmethod
    def fits(corridor: Corridor) -> bool:
        """Whether a table isn't too large."""
        widths, gap = _layout(corridor)
        return bool(8 * (widths.sum() + gap * (1 + np.count_nonzero(widths))) <= MOST_BYTES)

    def _fill(self) -> None:
        graph, sums = self._graph, self._sums
        weight, widths, rows = graph.weight[:, None], self._widths.tolist(), self._row.tolist()
        for node in range(len(graph.layers) - 1, -1, -1):
            begin, end = graph.leaving[node], graph.leaving[node + 1]
            if begin == end:
                continue
            width = widths[node]
            best = sums[rows[node] : rows[node] + width]
            pieces: FloatArray = np.ndarray((len(sums) - width + 1, width), buffer=sums, strides=(8, 8))
            step = max(1, CHUNK // width)
            for first in range(begin, end, step):
                some = slice(first, min(first + step, end))
                through = pieces[self._after[some]]
                through += weight[some]
                np.minimum(best, through.min(axis=0), out=best)

    def way(self) -> tuple[float, list[int]]:
        """The least sum (infinite if there is none), and the arcs of a way that has it: the first of equals."""
        graph = self._graph
        least, node, left = math.inf, -1, 0
        for begin in range(graph.num_starts):
            row = self._sums[self._row[begin] : self._row[begin] + self._widths[begin]]
            if row.min(initial=math.inf) < least:
                least, node, left = float(row.min()), begin, int(row.argmin())
        arcs = list[int]()
        # `left` is counted from the first number in a node's row.
        while node >= 0 and graph.layers[node] < graph.num_layers:
            part = slice(graph.leaving[node], graph.leaving[node + 1])
            arc = part.start + int((graph.weight[part] + self._sums[self._after[part] + left]).argmin())
            arcs.append(arc)
            node, left = int(graph.head[arc]), int(self._after[arc]) + left - int(self._row[graph.head[arc]])
        return least, arcs


def _layout(corridor: Corridor) -> tuple[IntArray, int]:
    """How many sums each node's row has, and how many are between rows."""
    graph, fewest = corridor.graph, corridor.fewest
    used = np.zeros(len(graph.layers), dtype=np.bool_)
    used[graph.tail] = used[graph.head] = True
    widths = np.where(used, np.maximum(corridor.most - fewest + 1, 0), 0)
    begins = fewest[graph.tail] - graph.size - fewest[graph.head]
    past = begins + widths[graph.tail] - widths[graph.head]
    return widths, int(max((-begins).max(initial=0), past.max(initial=0)))
