"""The choices that are left once followers are merged into what they follow, and what each pair of choices costs."""

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np

from alpa_dejavu.sharding._operator import Operator
from alpa_dejavu.sharding._table import Table

logger = logging.getLogger(__name__)

Edge = tuple[int, int]


@dataclasses.dataclass(frozen=True, eq=False)
class CostGraph:
    """One choice for each node, and the costs of nodes and of pairs of nodes.

    Attributes:
        costs: for each node the cost of each of its choices; infinite where a choice is forbidden.
        edges: for pairs (a, b), a < b, the cost of each choice of a (rows) with each of b (columns).
    """

    costs: dict[int, np.ndarray]
    edges: dict[Edge, np.ndarray]

    def objective(self, choice: dict[int, int]) -> float:
        """The cost of a choice for every node."""
        nodes = sum(float(cost[choice[node]]) for node, cost in self.costs.items())
        return nodes + sum(float(m[choice[a], choice[b]]) for (a, b), m in self.edges.items())


@dataclasses.dataclass(frozen=True, eq=False)
class Followers:
    """Which node decides for each operator, and how.

    Attributes:
        root: for each operator the operator whose choice decides.
        remap: for each operator the strategy that it takes under each choice of its root.
    """

    root: tuple[int, ...]
    remap: tuple[np.ndarray, ...]

    def strategy(self, operator: int, choice: dict[int, int]) -> int:
        """The strategy of an operator under a choice of all roots."""
        return int(self.remap[operator][choice[self.root[operator]]])


def merge_followers(operators: Sequence[Operator], tables: Sequence[Table]) -> Followers:
    """Let every operator that follows another be decided by the one at the end of the chain."""
    root: list[int] = []
    remap: list[np.ndarray] = []
    lookups: dict[int, np.ndarray] = {}
    for index, (operator, table) in enumerate(zip(operators, tables, strict=True)):
        if table.follow is None:
            root.append(index)
            remap.append(np.arange(len(table.strategies)))
            continue
        if id(table) not in lookups:
            lookups[id(table)] = _lookup(table)
        leader = operator.operands[table.follow]
        root.append(root[leader])
        remap.append(lookups[id(table)][remap[leader]])
    return Followers(tuple(root), tuple(remap))


def _lookup(table: Table) -> np.ndarray:
    """For each strategy of the followed operand the strategy that goes with it: its own, or else the cheapest.

    Of equally cheap ones the last, since the one that keeps the tensor whole stands last.
    """
    assert table.follow is not None
    edge = table.edges[table.follow]
    last_cheapest = edge.shape[1] - 1 - np.argmin(edge[:, ::-1], axis=1)
    for own, source in enumerate(table.sources):
        if source >= 0:
            last_cheapest[source] = own
    return last_cheapest


def build_graph(operators: Sequence[Operator], tables: Sequence[Table], followers: Followers) -> CostGraph:
    """Add up all costs by the nodes that decide them."""
    root, remap = followers.root, followers.remap
    graph = CostGraph({i: np.zeros(len(t.strategies)) for i, t in enumerate(tables) if root[i] == i}, {})
    for index, (operator, table) in enumerate(zip(operators, tables, strict=True)):
        graph.costs[root[index]] += table.cost[remap[index]]
        for operand, edge in zip(operator.operands, table.edges, strict=True):
            if edge.any():
                _add(graph, root[operand], root[index], edge[remap[operand]][:, remap[index]])
        if operator.kind == "output" and operator.alias is not None:
            _add_alias(graph, tables, followers, index, operator.alias)
        if operator.name == "add" and all(operators[i].kind == "dot" for i in operator.operands):
            _add_common_sum(graph, tables, followers, operator)
    return graph


def _add(graph: CostGraph, a: int, b: int, matrix: np.ndarray) -> None:
    if a == b:
        graph.costs[a] += np.diagonal(matrix)
        return
    if a > b:
        a, b, matrix = b, a, matrix.T
    graph.edges[a, b] = graph.edges[a, b] + matrix if (a, b) in graph.edges else matrix


def _add_alias(
    graph: CostGraph, tables: Sequence[Table], followers: Followers, output: int, parameter: int
) -> None:
    """An output that takes over a parameter's memory must be cut like it, where that is possible at all."""
    sources, targets = tables[parameter].outputs, tables[output].outputs
    unequal = np.array([[0.0 if a == b else np.inf for b in targets] for a in sources])
    matrix = unequal[followers.remap[parameter]][:, followers.remap[output]]
    if followers.root[parameter] == followers.root[output]:
        if not np.isfinite(np.diagonal(matrix)).any():
            return
    elif not np.isfinite(matrix).any():
        logger.warning("Output %d and the parameter %d that it replaces have no sharding in common.", output, parameter)
        return
    _add(graph, followers.root[parameter], followers.root[output], matrix)


def _add_common_sum(graph: CostGraph, tables: Sequence[Table], followers: Followers, add: Operator) -> None:
    """Two products that are added up need one all-reduce between them, if both leave the same partial sums."""
    left, right = add.operands
    if left == right:
        return
    saved = np.zeros((len(tables[left].strategies), len(tables[right].strategies)))
    for i, a in enumerate(tables[left].strategies):
        for j, b in enumerate(tables[right].strategies):
            if a.all_reduce and a.all_reduce == b.all_reduce and a.output == b.output:
                saved[i, j] = -min(a.communication, b.communication)
    matrix = saved[followers.remap[left]][:, followers.remap[right]]
    _add(graph, followers.root[left], followers.root[right], matrix)
