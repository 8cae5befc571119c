"""The value that an integer scalar has on each partition, where it depends on nothing but the partition's number.

The partitioner looks up where a partition's piece begins in tables, by `partition-id`; passes that want to know what
is cut for whom compute it for all partitions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from alpa_dejavu.sharding.hlo._graph import Graph
from alpa_dejavu.sharding.hlo._schema import HloInstructionProto
from alpa_dejavu.sharding.hlo._shapes import literal_values, num_elements

Values = np.ndarray  # one row for each partition, the instruction's elements in it

_BINARY: dict[str, Callable[[Values, Values], Values]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "minimum": np.minimum, "maximum": np.maximum,
    "divide": lambda a, b: np.where(b == 0, 0, a // np.where(b == 0, 1, b)),
    "remainder": lambda a, b: np.where(b == 0, 0, a % np.where(b == 0, 1, b)),
}  # fmt: skip
_LARGEST_TABLE = 1 << 16


def values_by_partition(graph: Graph, node: HloInstructionProto, num_partitions: int) -> np.ndarray | None:
    """The value of a scalar instruction on each partition, or None where it depends on more than the partition."""
    found = _values(graph, node, num_partitions)
    return found[:, 0] if found is not None and found.shape[1] == 1 else None


def _values(graph: Graph, node: HloInstructionProto, count: int) -> Values | None:
    if node.opcode == "partition-id":
        return np.arange(count).reshape(count, 1)
    if node.opcode == "constant":
        literal = literal_values(node.literal) if num_elements(node.shape) <= _LARGEST_TABLE else None
        if literal is None or literal.dtype.kind not in "iub":
            return None
        return np.broadcast_to(literal.astype(np.int64).reshape(1, -1), (count, literal.size))
    if node.opcode in ("reshape", "convert", "copy", "bitcast"):
        return _values(graph, graph.operand(node, 0), count)
    if node.opcode == "dynamic-slice":
        return _looked_up(graph, node, count)
    if node.opcode in _BINARY:
        first, second = (_values(graph, side, count) for side in graph.operands(node))
        if first is None or second is None or (first < 0).any() or (second < 0).any():
            return None
        return _BINARY[node.opcode](first, second)
    return None


def _looked_up(graph: Graph, node: HloInstructionProto, count: int) -> Values | None:
    """One row, or one element, of a table that is a constant."""
    table, *starts = graph.operands(node)
    sizes = list(node.shape.dimensions)
    values = _values(graph, table, count)
    offsets = [_values(graph, start, count) for start in starts]
    if values is None or any(offset is None for offset in offsets):
        return None
    dimensions = list(table.shape.dimensions)
    rows = []
    for partition in range(count):
        whole = values[partition].reshape(dimensions)
        corner = [
            int(np.clip(offset[partition, 0], 0, limit - size))
            for offset, limit, size in zip(offsets, dimensions, sizes, strict=True)
            if offset is not None
        ]
        rows.append(whole[tuple(slice(c, c + s) for c, s in zip(corner, sizes, strict=True))].ravel())
    return np.stack(rows)
