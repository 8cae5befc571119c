"""Exact removal of nodes from a cost graph: what is left is small, and only that goes to the solver.

A node with at most two neighbours can be left out: whatever they choose, its own best answer is known, and its cost
becomes part of theirs. A choice that is never better than another can be left out too.

References:
    Scholz and Eckstein, "Register allocation for irregular architectures" (LCTES 2002), reductions R0 to R2.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

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
    """

    costs: dict[int, np.ndarray]
    near: dict[int, dict[int, np.ndarray]]
    kept: dict[int, np.ndarray]
    removed: list[tuple[int, np.ndarray, list[tuple[int, np.ndarray, np.ndarray]]]]

    def drop(self, node: int) -> None:
        """Take out a node, and remember what its answer depends on."""
        neighbours = self.near.pop(node)
        for other in neighbours:
            del self.near[other][node]
        at_the_time = [(other, matrix, self.kept[other]) for other, matrix in neighbours.items()]
        self.removed.append((node, self.costs.pop(node), at_the_time))

    def connect(self, a: int, b: int, matrix: np.ndarray) -> None:
        """Add a cost to a pair of nodes."""
        before = self.near[a].get(b)
        total = matrix if before is None else before + matrix
        self.near[a][b], self.near[b][a] = total, total.T


def solve_by_elimination(graph: CostGraph, solve_core: Solver) -> dict[int, int]:
    """The cheapest choice for every node.

    Args:
        graph: the costs.
        solve_core: solves the graph that is left when no node can be eliminated any more.
    """
    work = _Work(
        dict(graph.costs), {node: {} for node in graph.costs},
        {node: np.arange(len(cost)) for node, cost in graph.costs.items()}, [],
    )
    for (a, b), matrix in graph.edges.items():
        work.connect(a, b, matrix)
    pending = list(work.costs)
    while pending:
        pending = _eliminate(work, pending) or _prune(work)
    rest = {(a, b): m for a, near in work.near.items() for b, m in near.items() if a < b}
    core = solve_core(CostGraph(work.costs, rest)) if work.costs else {}
    choice = {node: int(work.kept[node][index]) for node, index in core.items()}
    for node, cost, neighbours in reversed(work.removed):
        for other, matrix, kept in neighbours:
            cost = cost + matrix[:, int(np.searchsorted(kept, choice[other]))]
        choice[node] = int(work.kept[node][np.argmin(cost)])
    return choice


def _eliminate(work: _Work, pending: list[int]) -> list[int]:
    """Take out all nodes of at most two neighbours; nothing is left to look at afterwards."""
    stack = list(reversed(pending))
    while stack:
        node = stack.pop()
        if node not in work.near or len(work.near[node]) > 2:
            continue
        cost, neighbours = work.costs[node], list(work.near[node].items())
        work.drop(node)
        if len(neighbours) == 1:
            other, matrix = neighbours[0]
            work.costs[other] = work.costs[other] + (cost[:, None] + matrix).min(axis=0)
        elif len(neighbours) == 2:
            (a, to_a), (b, to_b) = neighbours
            work.connect(a, b, (cost[:, None, None] + to_a[:, :, None] + to_b[:, None, :]).min(axis=0))
        stack.extend(other for other, _ in neighbours)
    return []


def _prune(work: _Work) -> list[int]:
    """Take out choices that another choice of the node is never worse than; the nodes to look at again."""
    changed = set()
    for node in list(work.costs):
        keep = _undominated(work.costs[node], list(work.near[node].values()))
        if len(keep) == len(work.costs[node]):
            continue
        changed |= {node, *work.near[node]}
        work.costs[node] = work.costs[node][keep]
        work.kept[node] = work.kept[node][keep]
        for other, matrix in list(work.near[node].items()):
            work.near[node][other], work.near[other][node] = matrix[keep], matrix[keep].T
        if len(keep) == 1:
            for other, matrix in list(work.near[node].items()):
                work.costs[other] = work.costs[other] + matrix[0]
                del work.near[node][other], work.near[other][node]
    return sorted(changed)


def _undominated(cost: np.ndarray, matrices: list[np.ndarray]) -> np.ndarray:
    """The choices worth keeping: those to which no earlier-kept choice is at least as good in every case."""
    big = 1e30
    costs = np.minimum(cost, big)
    worst = costs[:, None] - costs[None, :]  # by how much choice i may be dearer than choice j
    for matrix in matrices:
        bounded = np.minimum(matrix, big)
        worst = worst + (bounded[:, None, :] - bounded[None, :, :]).max(axis=2)
    keep = np.ones(len(cost), dtype=bool)
    for j in range(len(cost) - 1, -1, -1):
        better = keep & (worst[:, j] <= 0)
        better[j] = False
        if better.any():
            keep[j] = False
    return np.flatnonzero(keep)
