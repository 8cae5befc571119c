"""The tables of all operators of a program, in order."""

import dataclasses

import numpy as np

from alpa_dejavu.sharding._facts import Facts
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._operator import ProgramOperator
from alpa_dejavu.sharding._options import INFINITY_COST, ShardingOptions
from alpa_dejavu.sharding._planning import ShardingStrategy, Site, StrategyTable, make_table
from alpa_dejavu.sharding._reshard import MeshCosts
from alpa_dejavu.sharding._spec import divides
from alpa_dejavu.sharding._strategies_dot import convolution_table, dot_table
from alpa_dejavu.sharding._strategies_shape import RULES, choose_leader

_RULES = RULES | {"dot": dot_table, "convolution": convolution_table}
_HAS_LEADER = ("elementwise", "same_size", "window", "reduce", "sort")


@dataclasses.dataclass(frozen=True, eq=False)
class KnownTables:
    """A cache of the strategy tables made so far on one mesh under the same options.

    Attributes:
        costs: the costs of collectives and of resharding on the mesh.
        tables: the tables by what each depends on: the operator, its surroundings, its operands' tables.
        equal: one table for each content, so that equal tables are one object.
        repeated: cost matrices multiplied by how often an operator runs, by the matrix's identity and that number.
        outputs: tables of outputs that must be cut into equal parts, by the identity of the table without that.
    """

    costs: MeshCosts
    tables: dict[tuple, StrategyTable] = dataclasses.field(default_factory=dict)
    equal: dict[tuple, StrategyTable] = dataclasses.field(default_factory=dict)
    repeated: dict[tuple[int, float], np.ndarray] = dataclasses.field(default_factory=dict)
    outputs: dict[int, StrategyTable] = dataclasses.field(default_factory=dict)

    def in_equal_parts(self, table: StrategyTable, operator: ProgramOperator) -> StrategyTable:
        """Returns the table of a program's output, whose strategies that cut it into unequal parts are forbidden, since
        Alpa refuses such outputs; unchanged where all do, or none.
        """
        if id(table) not in self.outputs:
            even = [divides(spec, operator.shape, self.costs.mesh.shape) for spec in table.outputs]
            cost = np.where(even, table.cost, INFINITY_COST)
            self.outputs[id(table)] = table if all(even) or not any(even) else dataclasses.replace(table, cost=cost)
        return self.outputs[id(table)]


TableStore = dict[tuple[LogicalMesh, ShardingOptions], KnownTables]


def operator_tables(
    facts: Facts, mesh: LogicalMesh, options: ShardingOptions, store: TableStore | None = None
) -> list[StrategyTable]:
    """Returns for each operator of a program the table of its strategies.

    Operators that are alike, and read operators that are alike, get one and the same table: a block that a model
    repeats is worked out once. `store` is a cache of the tables that were made for other programs.
    """
    operators, depths = facts.operators, facts.depths
    options = _relaxed(facts, mesh, options)
    store = {} if store is None else store
    if (mesh, options) not in store:
        store[mesh, options] = KnownTables(MeshCosts(mesh, options))
    shelf = store[mesh, options]
    max_depth = max(depths, default=0)
    tables: list[StrategyTable] = []
    for index, (operator, around) in enumerate(zip(operators, facts.surroundings, strict=True)):
        leader = (0, False)
        if operator.kind in _HAS_LEADER and len(operator.operands) > 1:
            leader = choose_leader(operator, operators, tables, depths, max_depth, facts.replaces.get(index))
        sources = tuple(tables[i] for i in operator.operands)
        key = (around.number, leader, *map(id, sources))
        if key not in shelf.tables:
            site = Site(
                operator, tuple(operators[i] for i in operator.operands), sources, shelf.costs, around,
                facts.batch_dims[index], leader,
            )  # fmt: skip
            if operator.pinned is not None:
                table = make_table(site, [ShardingStrategy("pinned", operator.pinned)])
            else:
                table = _RULES[operator.kind](site)
            if around.accumulated:
                table = _paid_once_in(table, options.grad_acc_num_micro_batches)
            if operator.repeats != 1:
                table = _repeated(table, operator.repeats, shelf.repeated)
            shelf.tables[key] = shelf.equal.setdefault(table.contents, table)
        table = shelf.tables[key]
        tables.append(shelf.in_equal_parts(table, operator) if around.feeds_output else table)
    return tables


def _paid_once_in(table: StrategyTable, times: int) -> StrategyTable:
    """Returns a table whose all-reduces are paid once in so many runs of the program."""
    if times == 1:
        return table
    strategies = tuple(
        dataclasses.replace(s, communication=s.communication / times) if s.all_reduce else s for s in table.strategies
    )
    cost = np.array([s.computation + s.communication for s in strategies])
    return dataclasses.replace(table, strategies=strategies, cost=cost)


def _repeated(table: StrategyTable, times: float, multiplied: dict[tuple[int, float], np.ndarray]) -> StrategyTable:
    """Returns a table whose costs are paid so many times in one run; equal edges stay one and the same."""
    strategies = tuple(
        dataclasses.replace(s, computation=s.computation * times, communication=s.communication * times)
        for s in table.strategies
    )
    edges = tuple(multiplied.setdefault((id(edge), times), edge * times) for edge in table.edges)
    return dataclasses.replace(table, strategies=strategies, cost=table.cost * times, edges=edges)


def _relaxed(facts: Facts, mesh: LogicalMesh, options: ShardingOptions) -> ShardingOptions:
    """Returns the options without those that the batch size does not allow."""
    sizes = facts.batch_sizes
    if options.force_batch_dim_to_mesh_dim < 0 or not sizes:
        return options
    if min(sizes) % mesh.num_devices and options.allow_mixed_mesh_shape:
        options = dataclasses.replace(options, allow_mixed_mesh_shape=False)
    if min(sizes) == 1 and max(sizes) != 1:
        options = dataclasses.replace(options, force_batch_dim_to_mesh_dim=-1)
    return options
