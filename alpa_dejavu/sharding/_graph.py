"""The choices that are left once followers are merged into what they follow, and what each pair of choices costs."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Sequence

import numpy as np

from alpa_dejavu.sharding._blocks import Blocks, add, affordable, own, remapped, turned
from alpa_dejavu.sharding._facts import Facts
from alpa_dejavu.sharding._operator import ProgramOperator
from alpa_dejavu.sharding._planning import StrategyTable
from alpa_dejavu.sharding._reshard import MeshCosts
from alpa_dejavu.sharding._strategies import SitedOperator

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
        nodes = sum(cost.item(choice[node]) for node, cost in self.costs.items())
        return nodes + sum(m.item(choice[a], choice[b]) for (a, b), m in self.edges.items())

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


def roots_of(operators: Sequence[ProgramOperator], sited: Sequence[SitedOperator]) -> list[int]:
    """Returns for each operator of a program the one whose choice of a strategy decides its own, maybe itself."""
    roots: list[int] = []
    for index, (operator, entry) in enumerate(zip(operators, sited, strict=True)):
        follow = entry.table.follow
        roots.append(index if follow is None else roots[operator.operands[follow]])
    return roots


def build_graph(
    facts: Facts, sited: Sequence[SitedOperator], roots: Sequence[int], blocks: Blocks, costs: MeshCosts
) -> CostGraph:
    """Builds a program's cost graph, whose nodes are the operators that choose their sharding strategy themselves.

    Operators that follow another one's choice add their costs to that one's. Edges have the costs of resharding. With
    sequence parallelism products that read the same result pay for one copy of it, a node of its own, and products that
    are added up, however many, for one sum; Alpa has each product pay, and two of them have one sum.
    """
    operators, chains = facts.operators, costs.options.sequence_parallel
    builder = _GraphBuilder(operators, sited, roots, CostGraph({}, {}), blocks)
    copied = builder.add_copies(facts.batch_dims, costs) if chains else frozenset[int]()
    first_product = {index: index for index, operator in enumerate(operators) if operator.kind == "dot"}
    for index, (operator, entry, root) in enumerate(zip(operators, sited, roots, strict=True)):
        if entry.cost is not None or root == index:
            builder.add_cost(root, entry.table.cost if entry.cost is None else entry.cost)
        if entry.is_priced:
            for operand, edge in zip(operator.operands, entry.edges, strict=True):
                if operand in copied and operator.kind == "dot":
                    continue
                if edge is not None and edge.ndim == 1:
                    builder.add_cost(root, edge)
                elif edge is not None:
                    builder.add(roots[operand], root, edge)
        if operator.alias is not None and operator.kind == "output":
            builder.add_alias(index, operator.alias)
        if operator.name == "add" and all(i in first_product for i in operator.operands):
            left, right = (first_product[i] for i in operator.operands)
            builder.add_common_sum(left, right)
            first_product.update({index: left} if chains else {})
    return builder.graph


@dataclasses.dataclass(frozen=True, eq=False)
class _GraphBuilder:
    operators: Sequence[ProgramOperator]
    sited: Sequence[SitedOperator]
    roots: Sequence[int]
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

    def add_copies(self, batch_dims: Sequence[int | None], costs: MeshCosts) -> frozenset[int]:
        """Adds a node for the copy of each result with a batch dimension that several products read, which is cut in
        some way that one of them needs, with the costs of bringing it there and on; returns these results.
        """
        readers: dict[int, list[tuple[int, int]]] = {}
        for index, operator in enumerate(self.operators):
            for position, operand in enumerate(operator.operands):
                if operator.kind == "dot" and batch_dims[operand] is not None:
                    readers.setdefault(operand, []).append((index, position))
        copied = frozenset(source for source, products in readers.items() if len(products) > 1)
        for node, source in enumerate(sorted(copied), len(self.operators)):
            operator, tables = self.operators[source], [self.sited[index].table for index, _ in readers[source]]
            needs = [
                tuple(strategy.operand(position, operator.rank) for strategy in table.strategies)
                for table, (_, position) in zip(tables, readers[source], strict=True)
            ]
            copies = tuple(dict.fromkeys(itertools.chain(*needs)))
            own = self.sited[source]
            to_copy = costs.matrix(operator.shape, operator.itemsize, own.table.outputs, copies)
            self.add_cost(node, np.zeros(len(copies)))
            self.add(self.roots[source], node, operator.repeats * to_copy[own.remap])
            for (index, _), targets in zip(readers[source], needs, strict=True):
                reader = self.sited[index]
                matrix = costs.matrix(operator.shape, operator.itemsize, copies, targets)
                self.add(node, self.roots[index], self.operators[index].repeats * matrix[:, reader.remap])
        return copied

    def add_alias(self, output: int, parameter: int) -> None:
        """Has an output that takes over a parameter's memory cut like it, where that is possible at all."""
        matrix = self._between(_unequal, parameter, output)
        alone = self.roots[parameter] == self.roots[output]
        if not self.blocks.once(_possible, self.blocks.once(own, matrix) if alone else matrix):
            if not alone:
                logger.warning(
                    "Output %d and the parameter %d that it replaces have no sharding in common.", output, parameter
                )
            return
        self.add(self.roots[parameter], self.roots[output], matrix)

    def add_common_sum(self, left: int, right: int) -> None:
        """Has two products that are added up pay one all-reduce between them, if both leave the same partial sums."""
        if left != right:
            self.add(self.roots[left], self.roots[right], self._between(_saved, left, right))

    def _between(self, price: Callable[[StrategyTable, StrategyTable], np.ndarray], a: int, b: int) -> np.ndarray:
        """Returns what two operators' strategies cost together, by the choices of those that decide."""
        left, right = self.sited[a], self.sited[b]
        costs = self.blocks.once(price, left.table, right.table)
        return self.blocks.once(remapped, costs, left.remap, right.remap)


def _unequal(parameter: StrategyTable, output: StrategyTable) -> np.ndarray:
    return np.array([[0.0 if a == b else np.inf for b in output.outputs] for a in parameter.outputs])


def _possible(costs: np.ndarray) -> bool:
    return bool(np.isfinite(costs).any())


def _saved(left: StrategyTable, right: StrategyTable) -> np.ndarray:
    saved = np.zeros((len(left.strategies), len(right.strategies)))
    for i, a in enumerate(left.strategies):
        for j, b in enumerate(right.strategies):
            if a.all_reduce and a.all_reduce == b.all_reduce and a.output == b.output:
                saved[i, j] = -min(a.communication, b.communication)
    return saved
