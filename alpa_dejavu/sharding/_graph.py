"""The choices that are left once followers are merged into what they follow, and what each pair of choices costs."""

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np

from alpa_dejavu.sharding._blocks import Blocks, add, affordable, own, picked, remapped, turned
from alpa_dejavu.sharding._operator import Operator
from alpa_dejavu.sharding._spec import Spec
from alpa_dejavu.sharding._table import Table

logger = logging.getLogger(__name__)

Edge = tuple[int, int]


@dataclasses.dataclass(frozen=True, eq=False)
class CostGraph:
    """A graph of what choices cost: each choice of a node by itself, and each pair of choices along an edge.

    Every node needs one choice.

    Attributes:
        costs: for each node the cost of each of its choices; infinite where a choice is forbidden.
        edges: for pairs (a, b), a < b, the cost of each choice of a (rows) with each of b (columns).
    """

    costs: dict[int, np.ndarray]
    edges: dict[Edge, np.ndarray]

    def objective(self, choice: dict[int, int]) -> float:
        """Returns the total cost of one choice for every node of the graph: of all nodes, and of all edges between."""
        nodes = sum(float(cost[choice[node]]) for node, cost in self.costs.items())
        return nodes + sum(float(m[choice[a], choice[b]]) for (a, b), m in self.edges.items())

    @property
    def arrays(self) -> list[np.ndarray]:
        """Returns the cost arrays of all nodes and edges in one list."""
        return [*self.costs.values(), *self.edges.values()]

    def affordable(self, blocks: Blocks) -> "CostGraph":
        """Returns the graph with infinity in place of all costs that are INFINITY_COST or more."""
        return CostGraph(
            {node: blocks.once(affordable, cost) for node, cost in self.costs.items()},
            {edge: blocks.once(affordable, matrix) for edge, matrix in self.edges.items()},
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Followers:
    """A record of the operators that don't choose their sharding strategy, but follow another operator's choice.

    Attributes:
        root: for each operator the index of the operator whose choice decides its strategy, maybe itself.
        remap: for each operator the number of the strategy that it takes under each choice of that deciding one.
    """

    root: tuple[int, ...]
    remap: tuple[np.ndarray, ...]

    def strategy(self, operator: int, choice: dict[int, int]) -> int:
        """Returns the number of an operator's strategy, given the choices of all operators that decide (the roots)."""
        return int(self.remap[operator][choice[self.root[operator]]])


def merge_followers(operators: Sequence[Operator], tables: Sequence[Table], blocks: Blocks) -> Followers:
    """Finds for each operator of a program the one whose choice of a sharding strategy decides its own.

    Args:
        operators: the program.
        tables: each operator's strategies, and the operand that it follows, if any.
        blocks: a cache of array computations.
    """
    root: list[int] = []
    remap: list[np.ndarray] = []
    for index, (operator, table) in enumerate(zip(operators, tables, strict=True)):
        if table.follow is None:
            root.append(index)
            remap.append(blocks.places(len(table.strategies)))
            continue
        leader = operator.operands[table.follow]
        root.append(root[leader])
        remap.append(blocks.once(_followed, table, remap[leader]))
    return Followers(tuple(root), tuple(remap))


def _followed(table: Table, leader: np.ndarray) -> np.ndarray:
    return picked(_lookup(table), leader)


def _lookup(table: Table) -> np.ndarray:
    """Returns for each strategy of the followed operand the strategy that goes with it: its own, or else the cheapest.

    Of equally cheap ones the last, since the one that keeps the tensor whole stands last.
    """
    assert table.follow is not None
    edge = table.edges[table.follow]
    last_cheapest = edge.shape[1] - 1 - np.argmin(edge[:, ::-1], axis=1)
    for strategy, source in enumerate(table.sources):
        if source >= 0:
            last_cheapest[source] = strategy
    return last_cheapest


def build_graph(
    operators: Sequence[Operator], tables: Sequence[Table], followers: Followers, blocks: Blocks
) -> CostGraph:
    """Builds a program's cost graph, whose nodes are the operators that choose their sharding strategy themselves.

    Operators that follow another one's choice add their costs to that one's. Edges have the costs of resharding.

    Args:
        operators: the program.
        tables: the strategies of each operator, with their costs.
        followers: for each operator the one whose choice it follows.
        blocks: a cache of array computations.
    """
    root, remap = followers.root, followers.remap
    builder = _Builder(CostGraph({}, {}), blocks)
    for index, (operator, table) in enumerate(zip(operators, tables, strict=True)):
        cost, edges = blocks.once(_priced, table, remap[index], *(remap[operand] for operand in operator.operands))
        if cost is not None or root[index] == index:
            builder.add_cost(root[index], table.cost if cost is None else cost)
        for operand, edge in zip(operator.operands, edges, strict=True):
            if edge is not None:
                builder.add(root[operand], root[index], edge)
        if operator.kind == "output" and operator.alias is not None:
            _add_alias(builder, tables, followers, index, operator.alias)
        if operator.name == "add" and all(operators[i].kind == "dot" for i in operator.operands):
            _add_common_sum(builder, tables, followers, operator)
    return builder.graph


def _priced(
    table: Table, own_remap: np.ndarray, *remaps: np.ndarray
) -> tuple[np.ndarray | None, tuple[np.ndarray | None, ...]]:
    """The costs of an operator and of bringing it its operands, by the choices of those that decide; None for zeros."""
    edges = (
        remapped(edge, remap, own_remap) if edge.any() else None
        for edge, remap in zip(table.edges, remaps, strict=True)
    )
    return picked(table.cost, own_remap) if table.cost.any() else None, tuple(edges)


@dataclasses.dataclass(frozen=True, eq=False)
class _Builder:
    graph: CostGraph
    blocks: Blocks

    def add_cost(self, node: int, cost: np.ndarray) -> None:
        """Adds an array of costs to those of a node's choices in the cost graph; a new node is made for them."""
        before = self.graph.costs.get(node)
        self.graph.costs[node] = cost if before is None else self.blocks.once(add, before, cost)

    def add(self, a: int, b: int, matrix: np.ndarray) -> None:
        """Adds a matrix of costs to an edge of the cost graph, with node a's choices in rows and b's in columns.

        Where a is b, its diagonal is added to the node's own costs.
        """
        if a == b:
            self.add_cost(a, self.blocks.once(own, matrix))
            return
        if a > b:
            a, b, matrix = b, a, self.blocks.once(turned, matrix)
        before = self.graph.edges.get((a, b))
        self.graph.edges[a, b] = matrix if before is None else self.blocks.once(add, before, matrix)


def _unequal(sources: tuple[Spec, ...], targets: tuple[Spec, ...]) -> np.ndarray:
    return np.array([[0.0 if a == b else np.inf for b in targets] for a in sources])


def _add_alias(builder: _Builder, tables: Sequence[Table], followers: Followers, output: int, parameter: int) -> None:
    """An output that takes over a parameter's memory must be cut like it, where that is possible at all."""
    once = builder.blocks.once
    unequal = once(_unequal, tables[parameter].outputs, tables[output].outputs)
    matrix = once(remapped, unequal, followers.remap[parameter], followers.remap[output])
    if followers.root[parameter] == followers.root[output]:
        if not np.isfinite(np.diagonal(matrix)).any():
            return
    elif not np.isfinite(matrix).any():
        logger.warning("Output %d and the parameter %d that it replaces have no sharding in common.", output, parameter)
        return
    builder.add(followers.root[parameter], followers.root[output], matrix)


def _add_common_sum(builder: _Builder, tables: Sequence[Table], followers: Followers, add: Operator) -> None:
    """Two products that are added up need one all-reduce between them, if both leave the same partial sums."""
    left, right = add.operands
    if left == right:
        return
    once = builder.blocks.once
    saved = once(_saved, tables[left], tables[right])
    matrix = once(remapped, saved, followers.remap[left], followers.remap[right])
    builder.add(followers.root[left], followers.root[right], matrix)


def _saved(left: Table, right: Table) -> np.ndarray:
    found = np.zeros((len(left.strategies), len(right.strategies)))
    for i, a in enumerate(left.strategies):
        for j, b in enumerate(right.strategies):
            if a.all_reduce and a.all_reduce == b.all_reduce and a.output == b.output:
                found[i, j] = -min(a.communication, b.communication)
    return found
