"""The tables of all operators of a program, in order."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from alpa_dejavu.sharding._batch import operator_batch_dims
from alpa_dejavu.sharding._depth import operator_depths
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._operator import DotDims, Operator
from alpa_dejavu.sharding._options import ShardingOptions
from alpa_dejavu.sharding._planning import Site, make_table
from alpa_dejavu.sharding._reshard import Costs
from alpa_dejavu.sharding._strategies_conv import convolution_table
from alpa_dejavu.sharding._strategies_dot import dot_table
from alpa_dejavu.sharding._strategies_elementwise import choose_leader, elementwise_table
from alpa_dejavu.sharding._strategies_reduce import (
    index_table,
    opaque_table,
    reduce_table,
    sibling_table,
    sort_table,
)
from alpa_dejavu.sharding._strategies_shape import (
    broadcast_table,
    identity_table,
    output_table,
    reshape_table,
    same_size_table,
    transpose_table,
    window_table,
)
from alpa_dejavu.sharding._strategies_source import constant_table, iota_table, parameter_table
from alpa_dejavu.sharding._table import Strategy, Table

_RULES: dict[str, Callable[[Site], Table]] = {
    "parameter": parameter_table, "random": parameter_table, "constant": constant_table, "iota": iota_table,
    "elementwise": elementwise_table, "broadcast": broadcast_table, "reshape": reshape_table,
    "transpose": transpose_table, "same_size": same_size_table, "window": window_table, "reduce": reduce_table,
    "sort": sort_table, "dot": dot_table, "convolution": convolution_table, "gather": index_table,
    "scatter": index_table, "identity": identity_table, "sibling": sibling_table, "opaque": opaque_table,
    "output": output_table,
}
_HAS_LEADER = ("elementwise", "same_size", "window", "reduce", "sort")
_BROADCAST_WITHIN = 6


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """What is known of a program whatever the mesh.

    Attributes:
        batch_dims: the batch dimension that each operator was found to have.
        depths: how deep each lies.
        users: who reads each operator's result.
        replaces: for operators whose result takes over a parameter's memory, that parameter.
    """

    batch_dims: list[int | None]
    depths: list[int]
    users: list[list[int]]
    replaces: dict[int, int]

    @classmethod
    def of(cls, operators: Sequence[Operator], thorough: bool = False) -> "Facts":
        """Of some operators; `thorough` is about batch dimensions (see `operator_batch_dims`)."""
        batch_dims = operator_batch_dims(operators, thorough)
        users: list[list[int]] = [[] for _ in operators]
        for index, operator in enumerate(operators):
            for operand in dict.fromkeys(operator.operands):
                users[operand].append(index)
        replaces = {op.operands[0]: op.alias for op in operators if op.kind == "output" and op.alias is not None}
        return cls(batch_dims, operator_depths(operators, batch_dims), users, replaces)


@dataclasses.dataclass(frozen=True, eq=False)
class KnownTables:
    """The tables made so far on one mesh under the same options.

    Attributes:
        costs: of collectives.
        tables: by what each depends on.
        equal: the tables that differ, by what is in them.
        repeated: costs that are paid several times, by what they are and how often.
    """

    costs: Costs
    tables: dict[tuple, Table] = dataclasses.field(default_factory=dict)
    equal: dict[tuple, Table] = dataclasses.field(default_factory=dict)
    repeated: dict[tuple[int, float], np.ndarray] = dataclasses.field(default_factory=dict)


TableStore = dict[tuple[LogicalMesh, ShardingOptions], KnownTables]


def operator_tables(
    operators: Sequence[Operator], mesh: LogicalMesh, options: ShardingOptions, facts: Facts | None = None,
    store: TableStore | None = None,
) -> tuple[list[Table], list[int | None], list[int]]:
    """The table of each operator, the batch dimension that each was found to have, and how deep it lies.

    Operators that are alike, and read operators that are alike, get one and the same table: a block that a model
    repeats is worked out once.

    Args:
        operators: the program.
        mesh: the devices.
        options: the user's.
        facts: what is known of the program, if anything is.
        store: the tables that were made for other programs, and takes up those made for this one.
    """
    facts = facts or Facts.of(operators)
    batch_dims, depths, users, replaces = facts.batch_dims, facts.depths, facts.users, facts.replaces
    options = _relaxed(operators, batch_dims, mesh, options)
    store = {} if store is None else store
    if (mesh, options) not in store:
        store[mesh, options] = KnownTables(Costs(mesh, options))
    shelf = store[mesh, options]
    costs, known = shelf.costs, shelf.tables
    max_depth = max(depths, default=0)
    tables: list[Table] = []
    for index, operator in enumerate(operators):
        leader = (0, False)
        if operator.kind in _HAS_LEADER:
            leader = choose_leader(operator, operators, tables, depths, max_depth, replaces.get(index))
        site = Site(
            operator=operator, operands=tuple(operators[i] for i in operator.operands),
            tables=tuple(tables[i] for i in operator.operands), costs=costs, batch_dim=batch_dims[index],
            leader=leader, feeds_output=any(operators[user].kind == "output" for user in users[index]),
            feeds_broadcast=operator.kind == "iota" and _feeds_broadcast(operators, users, index),
            batch_switch=_is_batch_switch(operators, users, index), users=len(users[index]),
        )
        share = options.grad_acc_num_micro_batches if _is_accumulated(operators, users, index) else 1
        key = (_key(site), share)
        if key not in known:
            made = _pinned_table(site) if operator.pinned is not None else _RULES[operator.kind](site)
            made = made if share == 1 else _paid_once_in(made, share)
            made = made if operator.repeats == 1 else _repeated(made, operator.repeats, shelf.repeated)
            known[key] = shelf.equal.setdefault(made.contents, made)
        tables.append(known[key])
    return tables, batch_dims, depths


def _key(site: Site) -> tuple:
    """What the table of an operator depends on."""
    operator = site.operator
    users = site.users == 1 if operator.kind == "reshape" else None
    return (
        operator.kind, operator.shape, operator.itemsize, operator.name, operator.attributes, operator.pinned,
        operator.repeats,
        tuple((o.kind, o.shape, o.itemsize) for o in site.operands), tuple(id(table) for table in site.tables),
        site.batch_dim, site.leader, site.feeds_output and operator.kind == "broadcast", site.feeds_broadcast,
        site.batch_switch, users,
    )


def _pinned_table(site: Site) -> Table:
    assert site.operator.pinned is not None
    return make_table(site, [Strategy("pinned", site.operator.pinned)])


def _feeds_broadcast(operators: Sequence[Operator], users: list[list[int]], index: int) -> bool:
    """Whether a broadcast is found within a few steps to the first reader, and its first reader, and so on."""
    steps = 0
    while users[index] and steps < _BROADCAST_WITHIN:
        index = users[index][0]
        if operators[index].kind == "broadcast":
            return True
        steps += operators[index].kind != "reshape"
    return False


def _is_batch_switch(operators: Sequence[Operator], users: list[list[int]], index: int) -> bool:
    """Whether a reshape stands between a batched product and a transposition."""
    operator = operators[index]
    if operator.kind != "reshape" or len(users[index]) != 1:
        return False
    dot = operators[operator.operands[0]].attributes
    return isinstance(dot, DotDims) and bool(dot.lhs_batch) and operators[users[index][0]].kind == "transpose"


def _is_accumulated(operators: Sequence[Operator], users: list[list[int]], index: int) -> bool:
    """Whether an operator's result is a gradient that is added to what earlier micro-batches left in a parameter."""
    if operators[index].kind not in ("dot", "convolution", "reduce"):
        return False
    if operators[index].gradient:
        return True
    while len(users[index]) == 1:
        user = users[index][0]
        if operators[user].name == "add":
            others = [operand for operand in operators[user].operands if operand != index]
            while others and operators[others[0]].kind == "identity":
                others = list(operators[others[0]].operands)
            return bool(others) and operators[others[0]].kind == "parameter"
        if operators[user].kind not in ("identity", "transpose"):
            return False
        index = user
    return False


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


def _relaxed(
    operators: Sequence[Operator], batch_dims: Sequence[int | None], mesh: LogicalMesh, options: ShardingOptions
) -> ShardingOptions:
    """Drop the options that the batch size does not allow."""
    axis = options.force_batch_dim_to_mesh_dim
    if axis < 0:
        return options
    sizes = [op.shape[dim] for op, dim in zip(operators, batch_dims, strict=True) if dim is not None]
    if not sizes:
        return options
    if min(sizes) % mesh.num_devices and options.allow_mixed_mesh_shape:
        options = dataclasses.replace(options, allow_mixed_mesh_shape=False)
    if min(sizes) == 1 and max(sizes) != 1:
        options = dataclasses.replace(options, force_batch_dim_to_mesh_dim=-1)
    return options
