"""The choices that are left once followers are merged into what they follow, and what each pair of choices costs."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np

from alpa_dejavu.sharding._blocks import Blocks, add, affordable, own, picked, remapped, turned
from alpa_dejavu.sharding._operator import ProgramOperator
from alpa_dejavu.sharding._planning import StrategyTable
from alpa_dejavu.sharding._spec import Spec

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
        """Returns the total cost of one choice for every node."""
        nodes = sum(float(cost[choice[node]]) for node, cost in self.costs.items())
        return nodes + sum(float(m[choice[a], choice[b]]) for (a, b), m in self.edges.items())

    @property
    def arrays(self) -> list[np.ndarray]:
        """Returns the cost arrays of all nodes and edges."""
        return [*self.costs.values(), *self.edges.values()]

    def affordable(self, blocks: Blocks) -> CostGraph:
        """Returns the graph with infinity in place of all costs that are INFINITY_COST or more."""
        return CostGraph(
            {node: blocks.once(affordable, cost) for node, cost in self.costs.items()},
            {edge: blocks.once(affordable, matrix) for edge, matrix in self.edges.items()},
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Followers:
    """The operators that don't choose their sharding strategy, but follow another operator's choice.

    Attributes:
        root: for each operator the one whose choice decides its strategy, maybe itself.
        remap: for each operator the number of the strategy that it takes under each choice of that deciding one.
    """

    root: tuple[int, ...]
    remap: tuple[np.ndarray, ...]

    def strategy(self, operator: int, choice: dict[int, int]) -> int:
        """Returns the number of an operator's strategy, given the choices of all operators that decide (the roots)."""
        return int(self.remap[operator][choice[self.root[operator]]])


def merge_followers(operators: Sequence[ProgramOperator], tables: Sequence[StrategyTable], blocks: Blocks) -> Followers:
    """Returns for each operator of a program the one whose choice of a strategy decides its own."""
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


def _followed(table: StrategyTable, leader: np.ndarray) -> np.ndarray:
    """Returns for each choice the strategy that goes with the leading operand's: its own, or else the cheapest.

    Of equally cheap ones it is the last, since the one that keeps the tensor whole stands last.
    """
    assert table.follow is not None
    edge = table.edges[table.follow]
    strategies = edge.shape[1] - 1 - np.argmin(edge[:, ::-1], axis=1)
    for strategy, source in enumerate(table.sources):
        if source >= 0:
            strategies[source] = strategy
    return np.asarray(strategies[leader])


def build_graph(
    operators: Sequence[ProgramOperator], tables: Sequence[StrategyTable], followers: Followers, blocks: Blocks
) -> CostGraph:
    """Builds a program's cost graph, whose nodes are the operators that choose their sharding strategy themselves.

    Operators that follow another one's choice add their costs to that one's. Edges have the costs of resharding.
    """
    root, remap = followers.root, followers.remap
    builder = _GraphBuilder(CostGraph({}, {}), blocks)
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
    table: StrategyTable, own_remap: np.ndarray, *remaps: np.ndarray
) -> tuple[np.ndarray | None, tuple[np.ndarray | None, ...]]:
    """Returns the costs of an operator and of bringing it its operands, by the deciding choices; None for zeros."""
    edges = (
        remapped(edge, remap, own_remap) if edge.any() else None
        for edge, remap in zip(table.edges, remaps, strict=True)
    )
    return picked(table.cost, own_remap) if table.cost.any() else None, tuple(edges)


@dataclasses.dataclass(frozen=True, eq=False)
class _GraphBuilder:
    graph: CostGraph
    blocks: Blocks

    def add_cost(self, node: int, cost: np.ndarray) -> None:
        """Adds costs to those of a node's choices; a new node is made for them."""
        before = self.graph.costs.get(node)
        self.graph.costs[node] = cost if before is None else self.blocks.once(add, before, cost)

    def add(self, a: int, b: int, matrix: np.ndarray) -> None:
        """Adds costs of a's choices (rows) with b's to their edge, or of a node with itself to its own costs."""
        if a == b:
            self.add_cost(a, self.blocks.once(own, matrix))
            return
        if a > b:
            a, b, matrix = b, a, self.blocks.once(turned, matrix)
        before = self.graph.edges.get((a, b))
        self.graph.edges[a, b] = matrix if before is None else self.blocks.once(add, before, matrix)


def _unequal(sources: tuple[Spec, ...], targets: tuple[Spec, ...]) -> np.ndarray:
    return np.array([[0.0 if a == b else np.inf for b in targets] for a in sources])


def _add_alias(
    builder: _GraphBuilder, tables: Sequence[StrategyTable], followers: Followers, output: int, parameter: int
) -> None:
    """Has an output that takes over a parameter's memory cut like it, where that is possible at all."""
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


def _add_common_sum(
    builder: _GraphBuilder, tables: Sequence[StrategyTable], followers: Followers, add: ProgramOperator
) -> None:
    """Has two products that are added up pay one all-reduce between them, if both leave the same partial sums."""
    left, right = add.operands
    if left == right:
        return
    once = builder.blocks.once
    saved = once(_saved, tables[left], tables[right])
    matrix = once(remapped, saved, followers.remap[left], followers.remap[right])
    builder.add(followers.root[left], followers.root[right], matrix)


def _saved(left: StrategyTable, right: StrategyTable) -> np.ndarray:
    saved = np.zeros((len(left.strategies), len(right.strategies)))
    for i, a in enumerate(left.strategies):
        for j, b in enumerate(right.strategies):
            if a.all_reduce and a.all_reduce == b.all_reduce and a.output == b.output:
                saved[i, j] = -min(a.communication, b.communication)
    return saved
