"""Exact removal of nodes from a cost graph: what is left is small, and only that goes to the solver; or the best cost
of what is left for every choice of some nodes at once.

A node with at most two neighbours can be left out: whatever they choose, its own best answer is known, and its cost
becomes part of theirs. A choice that is never better than another can be left out too.

References:
    Scholz and Eckstein, "Register allocation for irregular architectures" (LCTES 2002), reductions R0 to R2.
    Dechter, Bucket elimination: a unifying framework for reasoning, Artificial Intelligence 113, 1999: `JointCosts`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.sharding._blocks import Blocks, add, fold_into_one, fold_into_two, picked, turned, undominated
from alpa_dejavu.sharding._graph import CostGraph

Solver = Callable[[CostGraph], dict[int, int]]


@dataclasses.dataclass
class _GraphWork:
    """The graph while nodes are taken out of it.

    Attributes:
        costs: the cost of each node's choices that are left.
        near: the neighbours of each node, and the cost of its choices (rows) with theirs (columns).
        kept: which of a node's choices are left, by their first numbers.
        removed: the nodes taken out: cost, and for each neighbour the cost and the choices that it had then.
        blocks: the steps taken so far, in blocks like the one at hand.
    """

    costs: dict[int, np.ndarray]
    near: dict[int, dict[int, np.ndarray]]
    kept: dict[int, np.ndarray]
    removed: list[tuple[int, np.ndarray, list[tuple[int, np.ndarray, np.ndarray]]]]
    blocks: Blocks

    def drop(self, node: int) -> None:
        """Takes a node out, and keeps the costs by which its best choice is found afterwards."""
        neighbours = self.near.pop(node)
        for other in neighbours:
            del self.near[other][node]
        at_the_time = [(other, matrix, self.kept[other]) for other, matrix in neighbours.items()]
        self.removed.append((node, self.costs.pop(node), at_the_time))

    def connect(self, a: int, b: int, matrix: np.ndarray) -> None:
        """Adds costs to an edge, with node a's choices in rows and b's in columns."""
        before = self.near[a].get(b)
        total = matrix if before is None else self.blocks.once(add, before, matrix)
        self.near[a][b], self.near[b][a] = total, self.blocks.once(turned, total)

    def add_cost(self, node: int, cost: np.ndarray) -> None:
        self.costs[node] = self.blocks.once(add, self.costs[node], cost)


@dataclasses.dataclass(frozen=True, eq=False)
class Reduced:
    """A cost graph with nodes eliminated exactly: `core` is the graph of those that are left, whose least cost is the
    whole graph's but for a constant; `work` has the eliminated nodes, with the costs by which the best choice of each
    is found.
    """

    core: CostGraph
    work: _GraphWork

    def complete(self, core_choice: dict[int, int]) -> dict[int, int]:
        """Returns the best choice of every node, given those of the nodes that weren't eliminated."""
        kept, once = self.work.kept, self.work.blocks.once
        choice = {node: int(kept[node][index]) for node, index in core_choice.items()}
        for node, cost, neighbours in reversed(self.work.removed):
            places = [part for other, *arrays in neighbours for part in (*arrays, choice[other])]
            choice[node] = once(_best, cost, kept[node], *places)
        return choice


def solve_by_elimination(graph: CostGraph, solve_core: Solver, blocks: Blocks) -> dict[int, int]:
    """Returns the cheapest choice for every node of a cost graph; `solve_core` solves the graph that is left when no
    node can be eliminated any more.
    """
    reduced = reduce_graph(graph, blocks)
    return reduced.complete(solve_core(reduced.core) if reduced.core.costs else {})


def reduce_graph(graph: CostGraph, blocks: Blocks, keep: Collection[int] = ()) -> Reduced:
    """Eliminates nodes and choices as long as the least cost stays exact; nodes of `keep` stay, with all choices."""
    work = _GraphWork(
        dict(graph.costs),
        {node: {} for node in graph.costs},
        {node: blocks.once(_numbers, cost) for node, cost in graph.costs.items()},
        [],
        blocks,
    )
    for (a, b), matrix in graph.edges.items():
        work.connect(a, b, matrix)
    pending = list(work.costs)
    while pending:
        pending = _eliminate(work, pending, keep) or _prune(work, keep)
    rest = {(a, b): m for a, near in work.near.items() for b, m in near.items() if a < b}
    return Reduced(CostGraph(work.costs, rest), work)


def _eliminate(work: _GraphWork, pending: list[int], keep: Collection[int]) -> list[int]:
    """Takes out all nodes of at most two neighbours; nothing is left to look at afterwards."""
    stack = list(reversed(pending))
    while stack:
        node = stack.pop()
        if node not in work.near or len(work.near[node]) > 2 or node in keep:
            continue
        cost, neighbours = work.costs[node], list(work.near[node].items())
        work.drop(node)
        if len(neighbours) == 1:
            other, matrix = neighbours[0]
            work.add_cost(other, work.blocks.once(fold_into_one, cost, matrix))
        elif len(neighbours) == 2:
            (a, to_a), (b, to_b) = neighbours
            work.connect(a, b, work.blocks.once(fold_into_two, cost, to_a, to_b))
        stack.extend(other for other, _ in neighbours)
    return []


def _prune(work: _GraphWork, fixed: Collection[int]) -> list[int]:
    """Takes out choices that another choice of the node is never worse than; returns the nodes to look at again."""
    changed = set()
    once = work.blocks.once
    for node in list(work.costs):
        if node in fixed:
            continue
        keep = once(undominated, work.costs[node], *work.near[node].values())
        if len(keep) == len(work.costs[node]):
            continue
        changed |= {node, *work.near[node]}
        work.costs[node] = once(picked, work.costs[node], keep)
        work.kept[node] = once(picked, work.kept[node], keep)
        for other, matrix in list(work.near[node].items()):
            rest = once(picked, matrix, keep)
            work.near[node][other], work.near[other][node] = rest, once(turned, rest)
        if len(keep) == 1:
            for other, matrix in list(work.near[node].items()):
                work.add_cost(other, once(_first, matrix))
                del work.near[node][other], work.near[other][node]
    return sorted(changed)


def _best(cost: np.ndarray, kept: np.ndarray, *neighbours: Any) -> int:
    """Returns the best choice of a node by its cost, the choices that are left of it, and for each neighbour the cost
    of these with the neighbour's, the choices that were left of the neighbour, and the one that it takes.
    """
    for n in range(0, len(neighbours), 3):
        matrix, left, chosen = neighbours[n : n + 3]
        cost = cost + matrix[:, int(np.searchsorted(left, chosen))]
    return int(kept[np.argmin(cost)])


def _numbers(cost: np.ndarray) -> np.ndarray:
    return np.arange(len(cost))


def _first(matrix: np.ndarray) -> np.ndarray:
    return np.asarray(matrix[0])


_LARGEST, _MOST = 1 << 20, 32
"""The entries of the largest table that is made, and its most nodes."""

Factor = tuple[tuple[int, ...], NDArray[np.float64]]
"""Nodes, ascending, and the cost of each combination of their choices."""


@final
class JointCosts:
    """The least cost of a cost graph for each combination of choices of some nodes, which are kept.

    All other nodes are eliminated one by one, the one with the smallest table of costs first.
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
        self._factors: dict[int, list[Factor]] = {node: [((node,), cost)] for node, cost in graph.costs.items()}
        near = {node: {node} for node in graph.costs}
        for factor in graph.edges.items():
            for node in factor[0]:
                self._factors[node].append(factor)
                near[node].update(factor[0])
        sizes = {node: self._table_size(near[node]) for node in graph.costs if node not in choices}
        while sizes:
            node = min(sizes, key=sizes.__getitem__)
            del sizes[node]
            others = self._eliminate(node, tuple(sorted(near.pop(node))))
            for other in others:
                near[other].update(others)
                near[other].discard(node)
                if other in sizes:
                    sizes[other] = self._table_size(near[other])
        self._parts: dict[tuple[int | bytes, ...], NDArray[np.float64]] = {}
        self._left = list({id(factor): factor for node in self._keep for factor in self._factors[node]}.values())

    def cheapest(self, penalties: Sequence[tuple[int, NDArray[np.float64]]]) -> tuple[float, tuple[int, ...]]:
        """Returns the least cost of the whole graph when penalties are added to choices of kept nodes, and the kept
        nodes' choices, in the order of the nodes, each by its place among those that were kept; infinite if nothing is
        allowed.

        `penalties` are pairs of a kept node and the cost that is added to each of its choices, infinite for choices
        that are forbidden; a node may have several.

        Raises:
            ValueError: the penalties allow too many combinations of choices for one table.
        """
        added = {node: np.zeros(self._sizes[node]) for node in self._keep}
        for node, penalty in penalties:
            added[node] = added[node] + penalty[self._choices[node]]
        allowed = {node: np.flatnonzero(np.isfinite(penalty)) for node, penalty in added.items()}
        factors: list[Factor] = [((node,), added[node][places]) for node, places in allowed.items()]
        keys = {node: places.tobytes() for node, places in allowed.items()}
        for number, (nodes, costs) in enumerate(self._left):
            key: tuple[int | bytes, ...] = (number, *[keys[node] for node in nodes])
            if key not in self._parts:
                part = costs[np.ix_(*(allowed[node] for node in nodes))]
                self._parts[key] = part if part.size < costs.size else costs
            factors.append((nodes, self._parts[key]))
        total = _sum(self._keep, {node: len(places) for node, places in allowed.items()}, factors)
        if not total.size:
            return np.inf, (0,) * len(self._keep)
        best = np.unravel_index(int(total.argmin()), total.shape)
        return float(total.min()), tuple(
            int(allowed[node][index]) for node, index in zip(self._keep, best, strict=True)
        )

    def complete(self, kept: Sequence[int]) -> dict[int, int]:
        """Returns the best choice of every node, given the kept nodes' choices from `cheapest`."""
        choice = dict(zip(self._keep, map(int, kept), strict=True))
        for node, others, best in reversed(self._answers):
            choice[node] = int(best[tuple(choice[other] for other in others)])
        return choice | {node: int(places[choice[node]]) for node, places in self._choices.items()}

    def _table_size(self, nodes: Collection[int]) -> int:
        return math.prod([self._sizes[node] for node in nodes])

    def _eliminate(self, node: int, nodes: tuple[int, ...]) -> tuple[int, ...]:
        """Takes out a node, given the nodes that its costs hang on; returns which nodes it was connected to."""
        total = _sum(nodes, self._sizes, self._factors.pop(node))
        place = nodes.index(node)
        others = nodes[:place] + nodes[place + 1 :]
        self._answers.append((node, others, total.argmin(axis=place)))
        factor = others, total.min(axis=place)
        for other in others:
            self._factors[other] = [*(old for old in self._factors[other] if node not in old[0]), factor]
        return others


def _sum(nodes: tuple[int, ...], sizes: Mapping[int, int], factors: Sequence[Factor]) -> NDArray[np.float64]:
    """Returns the cost of each combination of some nodes' choices."""
    shape = [sizes[node] for node in nodes]
    if math.prod(shape) > _LARGEST or len(nodes) > _MOST:
        raise ValueError(f"the graph hangs together too closely: a table of {len(nodes)} nodes would be needed")
    total = np.zeros(shape)
    for own, costs in factors:
        total += costs.reshape([size if node in own else 1 for node, size in zip(nodes, shape, strict=True)])
    return total


def _with_choices(graph: CostGraph, choices: Mapping[int, NDArray[np.int64]]) -> CostGraph:
    """Returns the graph whose nodes have some of their choices alone."""
    costs = {node: cost[choices[node]] if node in choices else cost for node, cost in graph.costs.items()}
    edges = {}
    for (a, b), matrix in graph.edges.items():
        rows = matrix[choices[a]] if a in choices else matrix
        edges[a, b] = rows[:, choices[b]] if b in choices else rows
    return CostGraph(costs, edges)
