"""Strategies of operators that bring tensors into being (parameters, random numbers, iota), and of element-wise ones.

Element-wise operators have all operands cut like the result, which follows the deepest of them.
"""

import math
from collections.abc import Sequence

from alpa_dejavu.sharding._operator import Operator
from alpa_dejavu.sharding._planning import (
    Site,
    grid_specs,
    keep_batch_cut,
    line_specs,
    make_table,
    one_dim_specs,
    whole,
)
from alpa_dejavu.sharding._spec import replicated
from alpa_dejavu.sharding._table import Strategy, Table, unique_outputs

PARTIAL_CUT = 0.8
"""The share of the replication penalty that a parameter pays if it uses only one of two axes."""
WHOLE_IOTA = 5.0
"""An iota kept whole drags what reads it along, so its penalty is that much higher."""


def parameter_table(site: Site) -> Table:
    """Returns the table of a parameter's or random tensor's sharding strategies: cut along one dimension, or whole.

    A whole tensor pays a penalty. On a mesh of two axes one that has a batch dimension may be cut along two dimensions.
    """
    penalty = site.costs.replication_penalty()
    partial = penalty * PARTIAL_CUT if site.is_grid else 0.0
    strategies = [Strategy("S", spec, computation=partial) for spec in one_dim_specs(site, divisible=True)]
    if site.is_grid:
        if site.batch_dim is not None:
            strategies += [Strategy("SS", spec) for spec in grid_specs(site, divisible=True)]
        if site.options.allow_mixed_mesh_shape:
            strategies += [Strategy("S 1d", spec) for spec in line_specs(site, divisible=True)]
    if site.options.allow_replicated_parameters or not strategies:
        strategies.append(whole(site, penalty))
    strategies = [
        Strategy(s.name, s.output, tuple(replicated(o.rank) for o in site.operands), computation=s.computation)
        for s in unique_outputs(strategies)
    ]
    return make_table(site, keep_batch_cut(site, strategies))


def iota_table(site: Site) -> Table:
    """Returns the table of an iota's sharding strategies: cut along any dimensions, which costs nothing.

    It may also be whole, at a penalty, if it has no batch dimension or is soon broadcast, or if it can't be cut.
    """
    strategies = [Strategy("SS", spec) for spec in grid_specs(site, divisible=True)]
    if site.options.allow_mixed_mesh_shape:
        strategies += [Strategy("S 1d", spec) for spec in line_specs(site, divisible=True)]
    if not strategies or site.feeds_broadcast or site.batch_dim is None:
        penalty = site.costs.replication_penalty() * WHOLE_IOTA
        strategies.append(whole(site, penalty))
    return make_table(site, unique_outputs(strategies))


_NEAR = 4
"""Operands whose depths differ by no more than this are equally good to follow."""


def elementwise_table(site: Site) -> Table:
    """Returns the table of an element-wise operator's sharding strategies: it is cut like its leading operand.

    It chooses among the cuts of all operands if all are broadcasts, or if it is a comparison, an "and", or has three
    operands, of which several would do as the leading one.
    """
    leader, tie = site.leader
    if (tie and not _may_follow_any(site)) or _all_broadcast(site):
        specs = [
            spec for operand, table in zip(site.operands, site.tables, strict=True)
            if operand.rank == site.operator.rank for spec in table.outputs
        ]
        return make_table(site, unique_outputs([Strategy("=", spec) for spec in specs]))
    table = site.tables[leader]
    strategies = [Strategy("=", spec) for spec in table.outputs]
    return make_table(site, strategies, leader, range(len(strategies)))


def _may_follow_any(site: Site) -> bool:
    """Comparing and masking meet an iota and a tensor of data: neither may decide for the other."""
    return site.operator.name not in ("compare", "and") and len(site.operands) != 3


def _all_broadcast(site: Site) -> bool:
    return bool(site.operands) and all(operand.kind == "broadcast" for operand in site.operands)


def choose_leader(
    operator: Operator, operators: Sequence[Operator], tables: Sequence[Table], depths: Sequence[int],
    max_depth: int, alias: int | None,
) -> tuple[int, bool]:
    """Chooses the operand whose cut an operator follows.

    An operand that can be cut into more parts is preferred, then one that lies deeper in the program. An operand whose
    memory the result takes over is the last that is looked at.

    Args:
        operator: the operator that is to follow.
        operators: all operators of the program.
        tables: the sharding strategies of each operator before this one.
        depths: for each operator the length of the longest path to it.
        max_depth: the largest of these lengths.
        alias: the parameter that the operator's result replaces, if any.

    Returns:
        The position of the chosen operand, and whether another one is as good.
    """
    unit = 0.1 / max(max_depth, 1)
    best, leader, tie = -math.inf, 0, False
    for position, operand in enumerate(operator.operands):
        rank = operators[operand].rank
        if rank > operator.rank if operator.kind == "reduce" else rank == operator.rank:
            priority = tables[operand].max_tiles + depths[operand] * unit
            if priority > best + _NEAR * unit:
                best, leader, tie = priority, position, False
            elif priority >= best - _NEAR * unit:
                tie = True
        if alias is not None and operand == alias:
            break
    return leader, tie
