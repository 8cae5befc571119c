"""Strategies of element-wise operators: all operands cut like the result, which follows the deepest of them."""

import math
from collections.abc import Sequence

from alpa_dejavu.sharding._operator import Operator
from alpa_dejavu.sharding._planning import Site, make_table
from alpa_dejavu.sharding._table import Strategy, Table, unique_outputs

_NEAR = 4
"""Operands whose depths differ by no more than this are equally good to follow."""


def elementwise_table(site: Site) -> Table:
    """Take over the specs of the leading operand, or of all operands where none leads."""
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
    """The operand to follow, and whether another is equally good.

    First counts into how many parts an operand can be cut, then how deep it lies. An operand whose memory the result
    takes over is the last that is looked at.

    Args:
        operator: the operator that is to follow.
        operators: all operators.
        tables: the tables of the operators before this one.
        depths: the depths of all operators.
        max_depth: the largest of them.
        alias: the parameter that the operator's result replaces, if any.
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
