"""The tables of all operators of a program, in order."""

import dataclasses
from collections.abc import Callable

import numpy as np

from alpa_dejavu.sharding._facts import Facts
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._operator import Operator
from alpa_dejavu.sharding._options import INFINITY_COST, ShardingOptions
from alpa_dejavu.sharding._planning import Site, make_table, whole_table
from alpa_dejavu.sharding._reshard import Costs
from alpa_dejavu.sharding._spec import divides
from alpa_dejavu.sharding._strategies_dot import convolution_table, dot_table
from alpa_dejavu.sharding._strategies_elementwise import choose_leader, elementwise_table, iota_table, parameter_table
from alpa_dejavu.sharding._strategies_shape import (
    broadcast_table,
    identity_table,
    index_table,
    output_table,
    reduce_table,
    reshape_table,
    same_size_table,
    sibling_table,
    sort_table,
    transpose_table,
    window_table,
)
from alpa_dejavu.sharding._table import Strategy, Table

_RULES: dict[str, Callable[[Site], Table]] = {
    "parameter": parameter_table, "random": parameter_table, "constant": whole_table, "iota": iota_table,
    "elementwise": elementwise_table, "broadcast": broadcast_table, "reshape": reshape_table,
    "transpose": transpose_table, "same_size": same_size_table, "window": window_table, "reduce": reduce_table,
    "sort": sort_table, "dot": dot_table, "convolution": convolution_table, "gather": index_table,
    "scatter": index_table, "identity": identity_table, "sibling": sibling_table, "opaque": whole_table,
    "output": output_table,
}
_HAS_LEADER = ("elementwise", "same_size", "window", "reduce", "sort")


@dataclasses.dataclass(frozen=True, eq=False)
class KnownTables:
    """A cache of the tables of operators' sharding strategies made so far on one mesh under the same options.

    Attributes:
        costs: the costs of collectives and of resharding on the mesh.
        tables: the tables by what each depends on: the operator, its surroundings, its operands' tables.
        equal: one table for each content, so that equal tables are one object.
        repeated: cost matrices multiplied by how often an operator runs, by the matrix's identity and that number.
        outputs: tables of outputs that must be cut into equal parts, by the identity of the table without that.
    """

    costs: Costs
    tables: dict[tuple, Table] = dataclasses.field(default_factory=dict)
    equal: dict[tuple, Table] = dataclasses.field(default_factory=dict)
    repeated: dict[tuple[int, float], np.ndarray] = dataclasses.field(default_factory=dict)
    outputs: dict[int, Table] = dataclasses.field(default_factory=dict)

    def in_equal_parts(self, table: Table, operator: Operator) -> Table:
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
) -> list[Table]:
    """Returns for each operator of a program the table of its sharding strategies: ways to cut it, and their costs.

    Operators that are alike, and read operators that are alike, get one and the same table: a block that a model
    repeats is worked out once.

    Args:
        facts: the program's operators, with their batch dimensions, depths and readers.
        mesh: the logical mesh of the devices.
        options: the user's sharding options.
        store: a cache of the tables that were made for other programs; those made for this one are added to it.
    """
    operators, depths = facts.operators, facts.depths
    options = _relaxed(facts, mesh, options)
    store = {} if store is None else store
    if (mesh, options) not in store:
        store[mesh, options] = KnownTables(Costs(mesh, options))
    shelf = store[mesh, options]
    known = shelf.tables
    max_depth = max(depths, default=0)
    tables: list[Table] = []
    for index, (operator, around) in enumerate(zip(operators, facts.surroundings, strict=True)):
        leader = (0, False)
        if operator.kind in _HAS_LEADER and len(operator.operands) > 1:
            leader = choose_leader(operator, operators, tables, depths, max_depth, facts.replaces.get(index))
        sources = tuple(tables[i] for i in operator.operands)
        key = (around.number, leader, *map(id, sources))
        if key not in known:
            site = Site(
                operator=operator, operands=tuple(operators[i] for i in operator.operands), tables=sources,
                costs=shelf.costs, batch_dim=facts.batch_dims[index], leader=leader, feeds_output=around.feeds_output,
                feeds_broadcast=around.feeds_broadcast, batch_switch=around.batch_switch, users=around.users,
            )  # fmt: skip
            made = _pinned_table(site) if operator.pinned is not None else _RULES[operator.kind](site)
            if around.accumulated and options.grad_acc_num_micro_batches != 1:
                made = _paid_once_in(made, options.grad_acc_num_micro_batches)
            made = made if operator.repeats == 1 else _repeated(made, operator.repeats, shelf.repeated)
            known[key] = shelf.equal.setdefault(made.contents, made)
        table = known[key]
        tables.append(shelf.in_equal_parts(table, operator) if around.feeds_output else table)
    return tables


def _pinned_table(site: Site) -> Table:
    assert site.operator.pinned is not None
    return make_table(site, [Strategy("pinned", site.operator.pinned)])


def _paid_once_in(table: Table, times: int) -> Table:
    """A table whose all-reduces are paid once in so many runs of the program."""
    strategies = tuple(
        dataclasses.replace(s, communication=s.communication / times) if s.all_reduce else s for s in table.strategies
    )
    cost = np.array([s.computation + s.communication for s in strategies])
    return dataclasses.replace(table, strategies=strategies, cost=cost)


def _repeated(table: Table, times: float, known: dict[tuple[int, float], np.ndarray]) -> Table:
    """A table whose costs are paid so many times in one run of the program; equal edges stay one and the same."""
    strategies = tuple(
        dataclasses.replace(s, computation=s.computation * times, communication=s.communication * times)
        for s in table.strategies
    )
    edges = tuple(known.setdefault((id(edge), times), edge * times) for edge in table.edges)
    return dataclasses.replace(table, strategies=strategies, cost=table.cost * times, edges=edges)


def _relaxed(facts: Facts, mesh: LogicalMesh, options: ShardingOptions) -> ShardingOptions:
    """Drop the options that the batch size does not allow."""
    sizes = facts.batch_sizes
    if options.force_batch_dim_to_mesh_dim < 0 or not sizes:
        return options
    if min(sizes) % mesh.num_devices and options.allow_mixed_mesh_shape:
        options = dataclasses.replace(options, allow_mixed_mesh_shape=False)
    if min(sizes) == 1 and max(sizes) != 1:
        options = dataclasses.replace(options, force_batch_dim_to_mesh_dim=-1)
    return options
