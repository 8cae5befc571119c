"""How many bytes are alive on a device while each product runs."""

from collections.abc import Sequence

import numpy as np

from alpa_dejavu.sharding._graph import Followers
from alpa_dejavu.sharding._ilp import MemoryRow
from alpa_dejavu.sharding._operator import Operator
from alpa_dejavu.sharding._table import Table

_NO_MEMORY = ("identity", "output")


def memory_rows(
    operators: Sequence[Operator], tables: Sequence[Table], followers: Followers, budget: float
) -> tuple[MemoryRow, ...]:
    """A limit for each product and convolution: the results that are still to be read fit into the budget.

    Args:
        operators: in the order in which they run.
        tables: their tables.
        followers: which nodes decide for them.
        budget: bytes per device.
    """
    last = list(range(len(operators)))
    for index, operator in enumerate(operators):
        for operand in operator.operands:
            last[operand] = index
    for index, operator in enumerate(operators):
        if operator.kind in ("parameter", "output"):
            last[index] = len(operators)
    rows: list[MemoryRow] = []
    alive: dict[int, np.ndarray] = {}
    ends: dict[int, list[int]] = {}
    for index, operator in enumerate(operators):
        if operator.kind not in _NO_MEMORY:
            root = followers.root[index]
            alive[root] = alive.get(root, 0.0) + tables[index].memory[followers.remap[index]]
            ends.setdefault(last[index], []).append(index)
        if operator.kind in ("dot", "convolution"):
            rows.append((dict(alive), budget))
        for gone in ends.pop(index, []):
            root = followers.root[gone]
            alive[root] = alive[root] - tables[gone].memory[followers.remap[gone]]
    return tuple(rows)
