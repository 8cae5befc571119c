"""The best cost of a small graph for every choice of some of its nodes at once, exactly.

References:
    Dechter, Bucket elimination: a unifying framework for reasoning, Artificial Intelligence 113, 1999.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.sharding._graph import CostGraph

_LARGEST = 1 << 20
"""Entries of the largest table that is made."""

Factor = tuple[tuple[int, ...], NDArray[np.float64]]
"""Nodes, ascending, and the cost of each combination of their choices."""


@final
class JointCosts:
    """All nodes but the kept ones eliminated one by one, the one with the smallest table first.

    Attributes:
        costs: the best cost for each combination of choices of the kept nodes, a dimension for each.
    """

    def __init__(self, graph: CostGraph, keep: Sequence[int]) -> None:
        self._keep = tuple(sorted(keep))
        self._sizes = {node: len(cost) for node, cost in graph.costs.items()}
        self._answers: list[tuple[int, tuple[int, ...], NDArray[np.int64]]] = []
        self._factors: dict[int, list[Factor]] = {node: [] for node in graph.costs}
        for node, cost in graph.costs.items():
            self._add(((node,), cost))
        for edge, matrix in graph.edges.items():
            self._add((edge, matrix))
        left = {node: self._table_size(node) for node in graph.costs if node not in self._keep}
        while left:
            node = min(left, key=left.__getitem__)
            del left[node]
            left.update((other, self._table_size(other)) for other in self._eliminate(node) if other in left)
        factors = {id(factor): factor for node in self._keep for factor in self._factors[node]}
        self.costs: NDArray[np.float64] = self._sum(self._keep, list(factors.values()))

    def complete(self, kept: Sequence[int]) -> dict[int, int]:
        """The best choice of all nodes, given those of the kept ones in ascending order of the nodes."""
        choice = dict(zip(self._keep, map(int, kept), strict=True))
        for node, others, best in reversed(self._answers):
            choice[node] = int(best[tuple(choice[other] for other in others)])
        return choice

    def _add(self, factor: Factor) -> None:
        for node in factor[0]:
            self._factors[node].append(factor)

    def _around(self, node: int) -> tuple[int, ...]:
        return tuple(sorted({other for nodes, _ in self._factors[node] for other in nodes}))

    def _table_size(self, node: int) -> int:
        size = 1
        for other in self._around(node):
            size *= self._sizes[other]
        return size

    def _eliminate(self, node: int) -> tuple[int, ...]:
        """Takes out a node; which nodes it was connected to."""
        nodes = self._around(node)
        if self._table_size(node) > _LARGEST:
            raise ValueError(f"the graph hangs together too closely: a table of {len(nodes)} nodes would be needed")
        factors = self._factors.pop(node)
        total = self._sum(nodes, factors)
        place = nodes.index(node)
        others = nodes[:place] + nodes[place + 1 :]
        for other in others:
            self._factors[other] = [one for one in self._factors[other] if node not in one[0]]
        self._answers.append((node, others, total.argmin(axis=place)))
        self._add((others, total.min(axis=place)))
        return others

    def _sum(self, nodes: tuple[int, ...], factors: Sequence[Factor]) -> NDArray[np.float64]:
        total = np.zeros(tuple(self._sizes[node] for node in nodes))
        for own, costs in factors:
            total += costs.reshape(tuple(self._sizes[node] if node in own else 1 for node in nodes))
        return total
