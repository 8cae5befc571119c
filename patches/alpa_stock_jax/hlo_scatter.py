"""All-reduces of which each partition keeps a piece, turned into reduce-scatters; and other work on pieces only.

References: the semantics of XLA's ReduceScatterCreator and AllReduceReassociate, and of Alpa's
RedundantSliceEliminator. The partitioner looks up where a partition's piece begins in tables, by `partition-id`; what
is cut for whom is computed for all partitions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from alpa_dejavu.sharding.hlo.graph import HloGraph, reduction_of
from alpa_dejavu.sharding.hlo.schema import HloInstructionProto, HloModuleProto
from alpa_dejavu.sharding.hlo.shapes import literal_values, num_elements
from alpa_stock_jax.hlo_collectives import groups_of, is_gradient, set_groups

Node = HloInstructionProto


def all_reduce_to_reduce_scatter(module: HloModuleProto, num_partitions: int) -> HloModuleProto:
    """Returns a copy of a partitioned module with reduce-scatters for all-reduces of which partitions only take parts.

    The parts, which are dynamic slices, must together make up the value along one dimension within each group of
    partitions; each group is put into the order of its parts.
    """
    module = HloModuleProto.FromString(module.SerializeToString())
    graph = HloGraph(module)
    users = graph.users()
    for node in graph:
        if node.opcode != "all-reduce" or len(node.operand_ids) != 1 or is_gradient(node):
            continue
        slices = users[node.id]
        if not slices or any(user.opcode != "dynamic-slice" for user in slices) or node.id == graph.root_id:
            continue
        found = [_scattering(graph, node, user, num_partitions) for user in slices]
        if found[0] is None or any(other != found[0] for other in found):
            continue
        scattered = _scatter(graph, node, slices[0], found[0])
        for user in slices:
            graph.replace(user, scattered)
    graph.close()
    return module


def _scattering(
    graph: HloGraph, node: Node, piece: Node, num_partitions: int
) -> tuple[int, tuple[tuple[int, ...], ...]] | None:
    """Along which dimension a slice is a scattering of an all-reduce, and the groups in the order of their pieces."""
    whole, part = list(node.shape.dimensions), list(piece.shape.dimensions)
    cut = [i for i, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b]
    groups = groups_of(node) or (tuple(range(num_partitions)),)
    if len(cut) != 1 or piece.operand_ids[0] != node.id:
        return None
    members = len(groups[0])
    size = part[cut[0]]
    if size * members != whole[cut[0]] or any(len(group) != members for group in groups):
        return None
    starts = values_by_partition(graph, graph.operand(piece, 1 + cut[0]), num_partitions)
    if starts is None:
        return None
    ordered = []
    for group in groups:
        if sorted(int(starts[i]) for i in group) != [k * size for k in range(members)]:
            return None
        ordered.append(tuple(sorted(group, key=lambda i: int(starts[i]))))
    return cut[0], tuple(ordered)


def _scatter(graph: HloGraph, node: Node, piece: Node, how: tuple[int, tuple[tuple[int, ...], ...]]) -> Node:
    dimension, groups = how
    scattered = graph.adopt(node, node.operand_ids)
    scattered.opcode = "reduce-scatter"
    scattered.name = scattered.name.replace("all-reduce", "reduce-scatter")
    scattered.shape.CopyFrom(piece.shape)
    scattered.dimensions.append(dimension)
    set_groups(scattered, groups)
    return scattered


def reassociate_all_reduces(module: HloModuleProto) -> HloModuleProto:
    """Returns a copy of a module in which sums of all-reduced values are summed first and all-reduced once."""
    module = HloModuleProto.FromString(module.SerializeToString())
    graph = HloGraph(module)
    changed = True
    while changed:
        changed = False
        users = graph.users()
        for node in graph.order():
            if node.opcode != "add" or not _sums_all_reduces(graph, node, users):
                continue
            first, second = graph.operands(node)
            total = graph.adopt(node, [first.operand_ids[0], second.operand_ids[0]])
            graph.replace(node, graph.adopt(first, [total.id]))
            changed = True
            break
        graph.settle()
        graph.drop_dead()
    graph.close()
    return module


def _sums_all_reduces(graph: HloGraph, node: Node, users: dict[int, list[Node]]) -> bool:
    first, second = graph.operands(node)
    return (
        first.id != second.id
        and all(side.opcode == "all-reduce" and len(side.operand_ids) == 1 for side in (first, second))
        and all(len(users[side.id]) == 1 and side.id != graph.root_id for side in (first, second))
        and reduction_of(graph.module, first) == reduction_of(graph.module, second) == "add"
        and groups_of(first) == groups_of(second)
    )


def drop_redundant_slices(module: HloModuleProto) -> HloModuleProto:
    """Returns a copy of a module in which dynamic slices of broadcasts are broadcasts to the slice's size instead.

    That is done where the broadcast repeats its operand along every dimension that the slice cuts.
    """
    module = HloModuleProto.FromString(module.SerializeToString())
    for part in module.computations:
        graph = HloGraph(module, part)
        for node in graph:
            if node.opcode != "dynamic-slice":
                continue
            source = graph.operand(node, 0)
            sizes = zip(node.shape.dimensions, source.shape.dimensions, strict=True)
            cut = [i for i, (piece, whole) in enumerate(sizes) if piece != whole]
            if source.opcode == "broadcast" and not set(cut) & set(source.dimensions):
                graph.replace(node, graph.add(
                    "broadcast", node.shape, [graph.operand(source, 0)], dimensions=list(source.dimensions),
                    metadata=node.metadata,
                ))  # fmt: skip
        graph.close()
    return module


Values = np.ndarray  # one row for each partition, the instruction's elements in it

_BINARY: dict[str, Callable[[Values, Values], Values]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "minimum": np.minimum, "maximum": np.maximum,
    "divide": lambda a, b: np.where(b == 0, 0, a // np.where(b == 0, 1, b)),
    "remainder": lambda a, b: np.where(b == 0, 0, a % np.where(b == 0, 1, b)),
}  # fmt: skip
_LARGEST_TABLE = 1 << 16


def values_by_partition(graph: HloGraph, node: HloInstructionProto, num_partitions: int) -> np.ndarray | None:
    """Returns a scalar HLO instruction's value on each partition, computed from `partition-id` and constants.

    It has shape (partitions,); it is None where the value depends on anything else, or isn't a scalar.
    """
    found = _values(graph, node, num_partitions)
    return found[:, 0] if found is not None and found.shape[1] == 1 else None


def _values(graph: HloGraph, node: HloInstructionProto, count: int) -> Values | None:
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


def _looked_up(graph: HloGraph, node: HloInstructionProto, count: int) -> Values | None:
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
