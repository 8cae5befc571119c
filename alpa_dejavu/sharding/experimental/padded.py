"""A cost graph as arrays in which all nodes have as many choices as the largest one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.sharding._graph import CostGraph
from alpa_dejavu.sharding._ilp import MemoryRow
from alpa_dejavu.sharding._options import INFINITY_COST

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
_FULL = 1.0 + 1e-12
"""The share of a memory limit that may be used; it is above 1 because sums of bytes are rounded."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Padded:
    """A cost graph as arrays: N nodes of at most K choices, the H ends of their edges, and R memory limits.

    An edge has an end at each of its nodes. The ends at a node stand together, by the node at the other end.

    Attributes:
        nodes: the nodes' names in the graph, ascending; below, a node is its index here.
        sizes: how many choices each node has, shape (N,).
        costs: the cost of each choice, shape (N, K); infinite for choices that a node doesn't have.
        first: node n has the ends first[n] to first[n + 1] - 1, shape (N + 1,).
        middle: the first of node n's ends whose edge leads to a node after n, shape (N,).
        other: for each end the node at the other end of its edge, shape (H,).
        reverse: for each end the index of the other end of its edge, shape (H,).
        matrices: for each end the cost of the other node's choices (rows) with the own node's (columns), shape
            (H, K, K); zero for choices that a node doesn't have.
        use: the share of each memory limit that a choice takes, shape (R, N, K).
        dear: a cost above all differences between allowed choices; it stands for costs of INFINITY_COST and more.
    """

    nodes: tuple[int, ...]
    sizes: IntArray
    costs: FloatArray
    first: IntArray
    middle: IntArray
    other: IntArray
    reverse: IntArray
    matrices: FloatArray
    use: FloatArray
    dear: float

    @classmethod
    def of(cls, graph: CostGraph, memory: Sequence[MemoryRow] = ()) -> Padded:
        """Packs a cost graph, and the limits on the memory that its choices take, into padded arrays."""
        nodes = tuple(sorted(graph.costs))
        place = {node: n for n, node in enumerate(nodes)}
        sizes = np.array([len(graph.costs[node]) for node in nodes], dtype=np.intp)
        dear = 2.0 * sum(map(_largest, graph.arrays)) or 1.0
        impossible = dear * (len(graph.costs) + len(graph.edges) + 1)
        width = int(sizes.max(initial=1))
        costs = np.full((len(nodes), width), np.inf)
        for n, node in enumerate(nodes):
            costs[n, : sizes[n]] = _capped(graph.costs[node], dear, impossible)
        pairs = [(place[a], place[b]) for a, b in graph.edges]
        owner = np.array([n for pair in pairs for n in pair], dtype=np.intp)
        other = np.array([n for a, b in pairs for n in (b, a)], dtype=np.intp)
        order = np.lexsort((other, owner))
        rank = np.empty(len(order), dtype=np.intp)
        rank[order] = np.arange(len(order))
        matrices = np.zeros((len(order), width, width))
        for e, matrix in enumerate(graph.edges.values()):
            rows, columns = matrix.shape
            capped = _capped(matrix, dear, impossible)
            matrices[rank[2 * e + 1], :rows, :columns] = capped
            matrices[rank[2 * e], :columns, :rows] = capped.T
        first = np.searchsorted(owner[order], np.arange(len(nodes) + 1)).astype(np.intp)
        earlier = np.bincount(owner[other < owner], minlength=len(nodes))
        use = np.zeros((len(memory), len(nodes), width))
        for r, (bytes_of, limit) in enumerate(memory):
            for node, num_bytes in bytes_of.items():
                use[r, place[node], : len(num_bytes)] = num_bytes / limit
        return cls(nodes, sizes, costs, first, first[:-1] + earlier, other[order], rank[order ^ 1], matrices, use, dear)

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """Returns whether each of N nodes has each of K choices, shape (N, K); nodes with fewer choices are padded."""
        found: NDArray[np.bool_] = np.arange(self.costs.shape[1]) < self.sizes[:, None]
        return found

    @property
    def owner(self) -> IntArray:
        """Returns for each of the H ends of edges the index of the node that it is at, shape (H,)."""
        return np.repeat(np.arange(len(self.nodes)), np.diff(self.first))

    def by_node(self, of_ends: FloatArray) -> FloatArray:
        """Sums values of the H ends of edges at each of N nodes: shape (H, ...) becomes (N, ...)."""
        found = np.zeros((len(self.nodes), *of_ends.shape[1:]))
        near = np.flatnonzero(np.diff(self.first))
        if len(near):
            found[near] = np.add.reduceat(of_ends, self.first[near], axis=0)
        return found

    def ends(self, node: int) -> slice:
        """Returns the slice of the arrays with an entry for each end of an edge that has the ends at a node."""
        return slice(int(self.first[node]), int(self.first[node + 1]))

    def charged(self, prices: FloatArray) -> Padded:
        """Returns the cost graph without its R memory limits: what choices use of them is paid for instead.

        Args:
            prices: the cost of using up each limit, shape (R,).
        """
        costs = self.costs + np.tensordot(prices, self.use, 1)
        return dataclasses.replace(self, costs=costs, use=self.use[:0])

    def penalty(self, use: FloatArray) -> FloatArray:
        """Returns the penalty, in cost units, for overstepping R memory limits.

        Args:
            use: the used share of each limit, shape (R, ...); above 1 the limit is overstepped.
        """
        found: FloatArray = self.dear * len(self.nodes) * np.maximum(use - _FULL, 0.0).sum(axis=0)
        return found

    def totals(self, choices: IntArray) -> FloatArray:
        """Returns the total cost of each of S sets of choices, with penalties for exceeded memory limits, shape (S,).

        Args:
            choices: the choice of each of N nodes in each set, shape (N, S).
        """
        total: FloatArray = np.take_along_axis(self.costs, choices, axis=1).sum(axis=0)
        owner = self.owner
        once = np.flatnonzero(owner < self.other)
        total = total + self.matrices[once[:, None], choices[self.other[once]], choices[owner[once]]].sum(axis=0)
        return total + self.penalty(self.used(choices))

    def used(self, choices: IntArray) -> FloatArray:
        """Returns the share of each of R memory limits that each of S sets of choices uses, shape (R, S).

        Args:
            choices: the choice of each of N nodes in each set, shape (N, S).
        """
        places = np.arange(len(self.nodes))[:, None]
        found: FloatArray = self.use[:, places, choices].sum(axis=1)
        return found


def _largest(costs: FloatArray) -> float:
    return float(np.abs(costs[costs < INFINITY_COST]).max(initial=0.0))


def _capped(costs: FloatArray, dear: float, impossible: float) -> FloatArray:
    """Returns the costs with large ones lowered, so that a lower bound with these is one with the true costs, too."""
    capped = np.where(costs >= INFINITY_COST, np.minimum(costs, dear), costs)
    return np.where(np.isinf(costs), impossible, capped)
