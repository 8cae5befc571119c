"""The best cost of a small graph for every choice of some of its nodes at once, exactly.

References:
    Dechter, Bucket elimination: a unifying framework for reasoning, Artificial Intelligence 113, 1999.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.sharding._graph import CostGraph

_LARGEST, _MOST = 1 << 20, 32
"""Entries of the largest table that is made."""

Factor = tuple[tuple[int, ...], NDArray[np.float64]]
"""Nodes, ascending, and the cost of each combination of their choices."""


@final
class JointCosts:
    """The least cost of a cost graph for each combination of choices of some nodes, which are kept.

    The graph has a cost for each choice of a node, and for each pair of choices along an edge. All other nodes are
    eliminated one by one, the one with the smallest table of costs first.
    """

    def __init__(self, graph: CostGraph, choices: Mapping[int, NDArray[np.int64]]) -> None:
        """Keeps the nodes of `choices`, with those of their choices that it lists, ascending.

        Raises:
            ValueError: the graph hangs together too closely.
        """
        self._keep, self._choices = tuple(sorted(choices)), choices
        graph = _with_choices(graph, choices)
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
        self._left = list({id(factor): factor for node in self._keep for factor in self._factors[node]}.values())

    def cheapest(self, penalties: Sequence[tuple[int, NDArray[np.float64]]]) -> tuple[float, tuple[int, ...]]:
        """Finds the cheapest choices of a cost graph's kept nodes when penalties are added to their costs.

        Args:
            penalties: pairs of a kept node and the cost that is added to each of its choices, infinite for choices that
                are forbidden; a node may have several.

        Returns:
            The least cost of the whole graph, infinite if nothing is allowed, and the kept nodes' choices, in the order
            of the nodes, each by its place among the choices that were kept of its node.

        Raises:
            ValueError: the penalties allow too many combinations of choices for one table.
        """
        added = {node: np.zeros(self._sizes[node]) for node in self._keep}
        for node, penalty in penalties:
            added[node] = added[node] + penalty[self._choices[node]]
        allowed = {node: np.flatnonzero(np.isfinite(penalty)) for node, penalty in added.items()}
        factors: list[Factor] = [((node,), added[node][places]) for node, places in allowed.items()]
        factors += [(nodes, costs[np.ix_(*(allowed[node] for node in nodes))]) for nodes, costs in self._left]
        total = _sum(self._keep, {node: len(places) for node, places in allowed.items()}, factors)
        if not total.size:
            return np.inf, (0,) * len(self._keep)
        best = np.unravel_index(int(total.argmin()), total.shape)
        return float(total.min()), tuple(
            int(allowed[node][index]) for node, index in zip(self._keep, best, strict=True)
        )

    def complete(self, kept: Sequence[int]) -> dict[int, int]:
        """Returns the best choice of every node of a cost graph, given the kept nodes' choices from `cheapest`."""
        choice = dict(zip(self._keep, map(int, kept), strict=True))
        for node, others, best in reversed(self._answers):
            choice[node] = int(best[tuple(choice[other] for other in others)])
        return choice | {node: int(places[choice[node]]) for node, places in self._choices.items()}

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
        total = _sum(nodes, self._sizes, self._factors.pop(node))
        place = nodes.index(node)
        others = nodes[:place] + nodes[place + 1 :]
        for other in others:
            self._factors[other] = [one for one in self._factors[other] if node not in one[0]]
        self._answers.append((node, others, total.argmin(axis=place)))
        self._add((others, total.min(axis=place)))
        return others


def _sum(nodes: tuple[int, ...], sizes: Mapping[int, int], factors: Sequence[Factor]) -> NDArray[np.float64]:
    """The cost of each combination of some nodes' choices."""
    shape = tuple(sizes[node] for node in nodes)
    if math.prod(shape) > _LARGEST or len(nodes) > _MOST:
        raise ValueError(f"the graph hangs together too closely: a table of {len(nodes)} nodes would be needed")
    total = np.zeros(shape)
    for own, costs in factors:
        total += costs.reshape(tuple(sizes[node] if node in own else 1 for node in nodes))
    return total


def _with_choices(graph: CostGraph, choices: Mapping[int, NDArray[np.int64]]) -> CostGraph:
    """The graph whose nodes have some of their choices alone."""
    costs = {node: cost[choices[node]] if node in choices else cost for node, cost in graph.costs.items()}
    edges = {}
    for (a, b), matrix in graph.edges.items():
        rows = matrix[choices[a]] if a in choices else matrix
        edges[a, b] = rows[:, choices[b]] if b in choices else rows
    return CostGraph(costs, edges)
