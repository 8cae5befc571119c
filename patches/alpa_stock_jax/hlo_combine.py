"""Collectives of one kind done together: fewer calls for the same bytes.

The values are put side by side in one buffer, the collective is done once, and its result is cut up again. One buffer
rather than many operands because stock jaxlib takes collectives of one operand only; a transport sends one message,
too.

References: the semantics of XLA's AllReduceCombiner, AllGatherCombiner and ReduceScatterCombiner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

from alpa_dejavu.sharding.hlo.graph import HloGraph, reduction_of
from alpa_dejavu.sharding.hlo.schema import HloInstructionProto, HloModuleProto
from alpa_dejavu.sharding.hlo.shapes import S32, array_shape, byte_size, num_elements
from alpa_stock_jax.hlo_collectives import groups_of, is_gradient, next_channel
from alpa_stock_jax.hlo_scatter import all_reduce_to_reduce_scatter

Node = HloInstructionProto
_Combine = Callable[[HloGraph, Sequence[Node], int], list[Node]]


def combine_all_reduces(module: HloModuleProto, threshold_bytes: int) -> HloModuleProto:
    """Returns a copy of a module in which all-reduces of the same groups, type and operation are combined into one.

    Args:
        module: a partitioned module without calls.
        threshold_bytes: the most bytes that one combined all-reduce may have; a larger single one stays as it is.
    """
    return _combine(module, "all-reduce", threshold_bytes, _all_reduce)


def combine_all_gathers(module: HloModuleProto, threshold_bytes: int) -> HloModuleProto:
    """Returns a copy of a partitioned module in which all-gathers of the same groups and type are combined into one.

    The result of one combined all-gather has at most `threshold_bytes`; a larger single one stays as it is.
    """
    return _combine(module, "all-gather", threshold_bytes, _all_gather)


def combine_reduce_scatters(module: HloModuleProto, threshold_bytes: int) -> HloModuleProto:
    """Returns a copy of a module in which reduce-scatters that are alike are combined into one.

    They are alike if they have the same groups, type, operation and dimension.

    Args:
        module: a partitioned module without calls.
        threshold_bytes: the most bytes that one combined reduce-scatter may have.
    """
    return _combine(module, "reduce-scatter", threshold_bytes, _reduce_scatter)


def _combine(module: HloModuleProto, opcode: str, threshold_bytes: int, combine: _Combine) -> HloModuleProto:
    module = HloModuleProto.FromString(module.SerializeToString())
    graph = HloGraph(module)
    done: set[int] = set()
    while True:
        group = _next_group(graph, opcode, threshold_bytes, done)
        if not group:
            break
        done.update(node.id for node in group)
        if len(group) > 1:
            before = set(graph.nodes)
            for old, new in zip(group, combine(graph, group, next_channel_of(graph)), strict=True):
                graph.replace(old, new)
            graph.settle()
            graph.drop_dead()
            done.update(set(graph.nodes) - before)
    graph.close()
    return module


def next_channel_of(graph: HloGraph) -> int:
    """Returns a channel number that no collective uses, in the HLO module or newly added to the computation's graph."""
    return max(next_channel(graph.module), 1 + max((node.channel_id for node in graph), default=0))


def _next_group(graph: HloGraph, opcode: str, threshold_bytes: int, done: set[int]) -> list[Node]:
    """The first collective that isn't done and all later ones that can be done with it; none needs another."""
    group: list[Node] = []
    depends: set[int] = set()
    total = 0
    for node in graph.order():
        if any(i in depends for i in node.operand_ids):
            depends.add(node.id)
        elif node.opcode == opcode and node.id not in done and len(node.operand_ids) == 1:
            size = byte_size(node.shape)
            if group and (total + size > threshold_bytes or _key(graph, node) != _key(graph, group[0])):
                continue
            group.append(node)
            depends.add(node.id)
            total += size
    return group


def _key(graph: HloGraph, node: Node) -> Hashable:
    """Returns a key that collectives must have in common to be combined."""
    return (
        node.shape.element_type, groups_of(node), reduction_of(graph.module, node) or node.id,
        bool(node.channel_id), node.use_global_device_ids, is_gradient(node), tuple(node.dimensions),
    ) if node.opcode != "all-gather" else (node.shape.element_type, groups_of(node), bool(node.channel_id))


def _joined(graph: HloGraph, parts: Sequence[Node], rows: int) -> Node:
    """Values as the columns of one matrix with the given number of rows; a vector for no rows."""
    flat = [graph.reshape(part, [rows, num_elements(part.shape) // rows] if rows else [num_elements(part.shape)])
            for part in parts]
    width = sum(part.shape.dimensions[-1] for part in flat)
    kind = parts[0].shape.element_type
    shape = array_shape(kind, [rows, width] if rows else [width])
    # Each part is written into a buffer of zeros. XLA's CPU compiler fuses a concatenation with all that makes its
    # parts, into one loop that asks for each element which part it is of; a step of a small GPT on four data-parallel
    # devices took 1.6 to 1.9 times as long with that.
    joined, start = graph.add("broadcast", shape, [graph.constant(kind, 0)]), 0
    first = [graph.constant(S32, 0)] if rows else []
    for part in flat:
        joined = graph.add("dynamic-update-slice", shape, [joined, part, *first, graph.constant(S32, start)])
        start += part.shape.dimensions[-1]
    return joined


def _cut(graph: HloGraph, whole: Node, start: int, width: int) -> Node:
    """Some columns of a matrix, or elements of a vector."""
    *rows, _ = whole.shape.dimensions
    node = graph.add("slice", array_shape(whole.shape.element_type, [*rows, width]), [whole])
    for size in rows:
        node.slice_dimensions.add(start=0, limit=size, stride=1)
    node.slice_dimensions.add(start=start, limit=start + width, stride=1)
    return node


def _collective(graph: HloGraph, like: Node, operand: Node, dimensions: Sequence[int], channel: int) -> Node:
    node = graph.adopt(like, [operand.id])
    node.shape.CopyFrom(array_shape(like.shape.element_type, dimensions))
    node.ClearField("dimensions")
    if like.channel_id:
        node.channel_id = channel
    return node


def _all_reduce(graph: HloGraph, group: Sequence[Node], channel: int) -> list[Node]:
    joined = _joined(graph, [graph.operand(node, 0) for node in group], 0)
    reduced = _collective(graph, group[0], joined, joined.shape.dimensions, channel)
    results, start = [], 0
    for node in group:
        width = num_elements(node.shape)
        results.append(graph.reshape(_cut(graph, reduced, start, width), node.shape.dimensions))
        start += width
    return results


def _all_gather(graph: HloGraph, group: Sequence[Node], channel: int) -> list[Node]:
    """The members' values are the rows of the gathered matrix; each result's rows are moved to its own dimension."""
    members = len(group[0].replica_groups[0].replica_ids)
    joined = _joined(graph, [graph.operand(node, 0) for node in group], 1)
    width = joined.shape.dimensions[1]
    gathered = _collective(graph, group[0], joined, [members, width], channel)
    gathered.dimensions.append(0)
    results, start = [], 0
    for node in group:
        part = list(graph.operand(node, 0).shape.dimensions)
        axis = node.dimensions[0]
        columns = _cut(graph, gathered, start, math.prod(part))
        start += math.prod(part)
        split = graph.reshape(columns, [members, *part])
        moved = graph.transpose(split, [*range(1, axis + 1), 0, *range(axis + 1, len(part) + 1)])
        results.append(graph.reshape(moved, node.shape.dimensions))
    return results


def _reduce_scatter(graph: HloGraph, group: Sequence[Node], channel: int) -> list[Node]:
    """Each value's parts for the members become the rows of a matrix, which is scattered by rows."""
    members = len(group[0].replica_groups[0].replica_ids)
    rows = []
    for node in group:
        axis = node.dimensions[0]
        part = list(node.shape.dimensions)
        split = graph.reshape(graph.operand(node, 0), [*part[:axis], members, *part[axis:]])
        rows.append(graph.transpose(split, [axis, *range(axis), *range(axis + 1, len(part) + 1)]))
    joined = _joined(graph, rows, members)
    scattered = _collective(graph, group[0], joined, [1, joined.shape.dimensions[1]], channel)
    scattered.dimensions.append(0)
    results, start = [], 0
    for node in group:
        width = num_elements(node.shape)
        results.append(graph.reshape(_cut(graph, scattered, start, width), node.shape.dimensions))
        start += width
    return results


def optimize_collectives(
    module: HloModuleProto, num_partitions: int, all_reduce_threshold_bytes: int, all_gather_threshold_bytes: int
) -> HloModuleProto:
    """Returns a copy of a partitioned module with fewer collectives, each of which combines several.

    All-reduces of which each partition only takes a part become reduce-scatters first.

    Args:
        module: the module of one partition, without calls.
        num_partitions: the number of partitions.
        all_reduce_threshold_bytes: the most bytes of a combined all-reduce or reduce-scatter.
        all_gather_threshold_bytes: the most bytes of a combined all-gather.
    """
    module = all_reduce_to_reduce_scatter(module, num_partitions)
    module = combine_all_reduces(module, all_reduce_threshold_bytes)
    module = combine_reduce_scatters(module, all_reduce_threshold_bytes)
    return combine_all_gathers(module, all_gather_threshold_bytes)
