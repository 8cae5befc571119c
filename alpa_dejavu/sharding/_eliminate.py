"""Exact removal of nodes from a cost graph: what is left is small, and only that goes to the solver.

A node with at most two neighbours can be left out: whatever they choose, its own best answer is known, and its cost
becomes part of theirs. A choice that is never better than another can be left out too.

References:
    Scholz and Eckstein, "Register allocation for irregular architectures" (LCTES 2002), reductions R0 to R2.
"""

import dataclasses
from collections.abc import Callable, Collection

import numpy as np

from alpa_dejavu.sharding._blocks import Blocks, add, fold_into_one, fold_into_two, picked, turned, undominated
from alpa_dejavu.sharding._graph import CostGraph

Solver = Callable[[CostGraph], dict[int, int]]


@dataclasses.dataclass
class _Work:
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
        """Takes a node out of the cost graph, and keeps the costs by which its best choice is found afterwards."""
        neighbours = self.near.pop(node)
        for other in neighbours:
            del self.near[other][node]
        at_the_time = [(other, matrix, self.kept[other]) for other, matrix in neighbours.items()]
        self.removed.append((node, self.costs.pop(node), at_the_time))

    def connect(self, a: int, b: int, matrix: np.ndarray) -> None:
        """Adds a matrix of costs to an edge of the cost graph, with node a's choices in rows and b's in columns."""
        before = self.near[a].get(b)
        total = matrix if before is None else self.blocks.once(add, before, matrix)
        self.near[a][b], self.near[b][a] = total, self.blocks.once(turned, total)

    def add_cost(self, node: int, cost: np.ndarray) -> None:
        """Adds an array of costs to those of a node's choices in the cost graph."""
        self.costs[node] = self.blocks.once(add, self.costs[node], cost)


@dataclasses.dataclass(frozen=True, eq=False)
class Reduced:
    """A cost graph with nodes eliminated exactly, and what is needed to choose for the eliminated nodes, too.

    Attributes:
        core: the graph of the nodes that are left; its least cost is the whole graph's, but for a constant.
        work: the eliminated nodes, with the costs by which the best choice of each is found.
    """

    core: CostGraph
    work: _Work

    def complete(self, core_choice: dict[int, int]) -> dict[int, int]:
        """Returns the best choice of every node of the graph, given those of the nodes that weren't eliminated."""
        kept = self.work.kept
        choice = {node: int(kept[node][index]) for node, index in core_choice.items()}
        for node, cost, neighbours in reversed(self.work.removed):
            for other, matrix, at_the_time in neighbours:
                cost = cost + matrix[:, int(np.searchsorted(at_the_time, choice[other]))]
            choice[node] = int(kept[node][np.argmin(cost)])
        return choice


def solve_by_elimination(graph: CostGraph, solve_core: Solver, blocks: Blocks) -> dict[int, int]:
    """Returns the cheapest choice for every node of a cost graph, from which nodes are first eliminated exactly.

    Args:
        graph: the cost of each choice of each node, and of each pair of choices along an edge.
        solve_core: solves the graph that is left when no node can be eliminated any more.
        blocks: a cache of array computations, which are done once for all blocks of a model that are alike.
    """
    reduced = reduce_graph(graph, blocks)
    return reduced.complete(solve_core(reduced.core) if reduced.core.costs else {})


def reduce_graph(graph: CostGraph, blocks: Blocks, keep: Collection[int] = ()) -> Reduced:
    """Eliminates nodes and choices of a cost graph as long as that leaves its least cost exact.

    A node of at most two neighbours becomes part of their costs, and choices that are never better than another one
    are dropped. Nodes of `keep` stay, with all choices. `blocks` is a cache of array computations.
    """
    work = _Work(
        dict(graph.costs),
        {node: {} for node in graph.costs},
        {node: np.arange(len(cost)) for node, cost in graph.costs.items()},
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


def _eliminate(work: _Work, pending: list[int], keep: Collection[int]) -> list[int]:
    """Take out all nodes of at most two neighbours; nothing is left to look at afterwards."""
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


def _prune(work: _Work, fixed: Collection[int]) -> list[int]:
    """Take out choices that another choice of the node is never worse than; the nodes to look at again."""
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
        work.kept[node] = work.kept[node][keep]
        for other, matrix in list(work.near[node].items()):
            rest = once(picked, matrix, keep)
            work.near[node][other], work.near[other][node] = rest, once(turned, rest)
        if len(keep) == 1:
            for other, matrix in list(work.near[node].items()):
                work.add_cost(other, once(_first, matrix))
                del work.near[node][other], work.near[other][node]
    return sorted(changed)


def _first(matrix: np.ndarray) -> np.ndarray:
    return np.asarray(matrix[0])
