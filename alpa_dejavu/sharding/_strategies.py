"""The operators of a program on a mesh: their strategies, which follow which, and what each choice costs."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import final

import numpy as np

from alpa_dejavu.sharding._blocks import Blocks, picked, remapped
from alpa_dejavu.sharding._facts import Facts
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._operator import ProgramOperator
from alpa_dejavu.sharding._options import INFINITY_COST, ShardingOptions
from alpa_dejavu.sharding._planning import ShardingStrategy, Site, StrategyTable, make_table
from alpa_dejavu.sharding._reshard import MeshCosts
from alpa_dejavu.sharding._spec import divides
from alpa_dejavu.sharding._strategies_dot import convolution_table, dot_table
from alpa_dejavu.sharding._strategies_shape import RULES

_RULES = RULES | {"dot": dot_table, "convolution": convolution_table}


@final
@dataclasses.dataclass(frozen=True, eq=False)
class SitedOperator:
    """An operator of a program on a mesh: its strategies, which of them goes with each choice of the operator that
    decides, and what that costs.

    Attributes:
        number: a number that operators share if they have the same strategies, and take them in the same way.
        table: the table of its strategies.
        remap: the number of the strategy that it takes under each choice of the operator that decides: itself, or that
            which decides what it follows.
        cost: what each choice costs it; None for nothing.
        edges: for each operand what it costs to bring it, by the choices of the operator that decides the operand
            (rows) and of that which decides this one (columns); of the operand that it follows, by the choices of the
            operator that decides both; None for nothing.
    """

    number: int
    table: StrategyTable
    remap: np.ndarray
    cost: np.ndarray | None
    edges: tuple[np.ndarray | None, ...]

    @cached_property
    def strategies(self) -> list[ShardingStrategy]:
        """Returns the strategy that it takes under each choice."""
        return [self.table.strategies[number] for number in self.remap.tolist()]

    @cached_property
    def is_priced(self) -> bool:
        return self.cost is not None or any(edge is not None for edge in self.edges)


@final
class SitedOperators:
    """A store of the operators of programs on one mesh under the same options, in which each is worked out once.

    Operators that are alike, and read operators that are alike, are one and the same object: a block that a model
    repeats is worked out once.

    Args:
        mesh, options: the mesh and the options.
        blocks: the cache of computations on the arrays of costs.
    """

    def __init__(self, mesh: LogicalMesh, options: ShardingOptions, blocks: Blocks) -> None:
        self.costs, self.blocks = MeshCosts(mesh, options), blocks
        self._sited: dict[tuple[int, ...], SitedOperator] = {}
        self._tables: dict[tuple, StrategyTable] = {}
        self._remaps: dict[tuple[int, bytes], np.ndarray] = {}
        self._numbers: dict[tuple[int, int], int] = {}

    def of(self, facts: Facts) -> list[SitedOperator]:
        """Returns the operators of a program, in order."""
        sited: list[SitedOperator] = []
        for index, (operator, around) in enumerate(zip(facts.operators, facts.surroundings, strict=True)):
            key = (around.number, *[sited[operand].number for operand in operator.operands])
            entry = self._sited.get(key)
            if entry is None:
                entry = self._sited[key] = self._made(facts, index, [sited[operand] for operand in operator.operands])
            sited.append(entry)
        return sited

    def _made(self, facts: Facts, index: int, operands: Sequence[SitedOperator]) -> SitedOperator:
        table = self._table(facts, index, [operand.table for operand in operands])
        remap = np.arange(len(table.strategies))
        if table.follow is not None:
            remap = _followed(table, operands[table.follow].remap)
        remap = self._remaps.setdefault((len(table.strategies), remap.tobytes()), remap)
        number = self._numbers.setdefault((id(table), id(remap)), len(self._numbers))
        cost, edges = self.blocks.once(_priced, table, remap, *(operand.remap for operand in operands))
        return SitedOperator(number, table, remap, cost, edges)

    def _table(self, facts: Facts, index: int, sources: Sequence[StrategyTable]) -> StrategyTable:
        operator, around = facts.operators[index], facts.surroundings[index]
        operands = tuple(facts.operators[operand] for operand in operator.operands)
        site = Site(operator, operands, tuple(sources), self.costs, around, facts.batch_dims[index])
        if operator.pinned is not None:
            table = make_table(site, [ShardingStrategy("pinned", operator.pinned)])
        else:
            table = _RULES[operator.kind](site)
        if self.costs.options.sequence_parallel and facts.batch_dims[index] is not None:
            table = dataclasses.replace(table, cost=table.cost + self.costs.moved(table.memory))
        if around.accumulated:
            table = _paid_once_in(table, self.costs.options.grad_acc_num_micro_batches)
        if operator.repeats != 1:
            table = _repeated(table, operator.repeats)
        if around.feeds_output:
            table = _in_equal_parts(table, operator, self.costs.mesh)
        return self._tables.setdefault(table.contents, table)


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


def _priced(
    table: StrategyTable, own_remap: np.ndarray, *remaps: np.ndarray
) -> tuple[np.ndarray | None, tuple[np.ndarray | None, ...]]:
    """Returns the costs of an operator and of bringing it its operands, by the deciding choices; None for zeros."""
    edges: list[np.ndarray | None] = []
    for position, (edge, remap) in enumerate(zip(table.edges, remaps, strict=True)):
        is_followed = position == table.follow
        costs = edge[remap, own_remap] if is_followed else edge
        edges.append(None if not costs.any() else costs if is_followed else remapped(edge, remap, own_remap))
    return picked(table.cost, own_remap) if table.cost.any() else None, tuple(edges)


def _in_equal_parts(table: StrategyTable, operator: ProgramOperator, mesh: LogicalMesh) -> StrategyTable:
    """Returns the table of a program's output, whose strategies that cut it into unequal parts are forbidden, since
    Alpa refuses such outputs; unchanged where all do, or none.
    """
    even = [divides(spec, operator.shape, mesh.shape) for spec in table.outputs]
    cost = np.where(even, table.cost, INFINITY_COST)
    return table if all(even) or not any(even) else dataclasses.replace(table, cost=cost)


def _paid_once_in(table: StrategyTable, times: int) -> StrategyTable:
    """Returns a table whose all-reduces are paid once in so many runs of the program."""
    if times == 1:
        return table
    strategies = tuple(
        dataclasses.replace(s, communication=s.communication / times) if s.all_reduce else s for s in table.strategies
    )
    cost = np.array([s.computation + s.communication for s in strategies])
    return dataclasses.replace(table, strategies=strategies, cost=cost)


def _repeated(table: StrategyTable, times: float) -> StrategyTable:
    """Returns a table whose costs are paid so many times in one run."""
    strategies = tuple(
        dataclasses.replace(s, computation=s.computation * times, communication=s.communication * times)
        for s in table.strategies
    )
    edges = tuple(edge * times for edge in table.edges)
    return dataclasses.replace(table, strategies=strategies, cost=table.cost * times, edges=edges)


def relaxed(facts: Facts, mesh: LogicalMesh, options: ShardingOptions) -> ShardingOptions:
    """Returns the options without those that the batch size does not allow."""
    sizes = facts.batch_sizes
    if options.force_batch_dim_to_mesh_dim < 0 or not sizes:
        return options
    if min(sizes) % mesh.num_devices and options.allow_mixed_mesh_shape:
        options = dataclasses.replace(options, allow_mixed_mesh_shape=False)
    if min(sizes) == 1 and max(sizes) != 1:
        options = dataclasses.replace(options, force_batch_dim_to_mesh_dim=-1)
    return options
