"""Dots brought to one form, and transposes taken into them.

The sharding engine knows dots with the batch dimensions first and, beside them, one row or column and one contracted
dimension on each side. What jax writes for einsums and for dense layers on batches of sequences is brought to that
form by transposes and reshapes around the dot; a transpose that only swaps a side's last two dimensions becomes
another contracted dimension instead.

References: the semantics of XLA's DotDecomposer, TransposeFolding and of AlgebraicSimplifier on a transposed dot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from alpa_dejavu.sharding.hlo._graph import Graph
from alpa_dejavu.sharding.hlo._schema import HloInstructionProto
from alpa_dejavu.sharding.hlo._shapes import array_shape

Node = HloInstructionProto


def canonical_dots(graph: Graph) -> bool:
    """Rewrites every `dot` that isn't in the form which the sharding engine takes, and returns whether there were any.

    In that form each side has its batch dimensions first, then at most one free dimension and one contracted one.
    """
    for node in graph:
        if node.opcode == "dot" and not _is_canonical(graph, node):
            graph.replace(node, _decompose(graph, node))
    return graph.settle()


def _is_canonical(graph: Graph, node: Node) -> bool:
    numbers = node.dot_dimension_numbers
    batch = list(range(len(numbers.lhs_batch_dimensions)))
    return (
        len(numbers.lhs_contracting_dimensions) == 1
        and all(len(side.shape.dimensions) <= len(batch) + 2 for side in graph.operands(node))
        and list(numbers.lhs_batch_dimensions) == batch
        and list(numbers.rhs_batch_dimensions) == batch
    )


def _decompose(graph: Graph, node: Node) -> Node:
    numbers = node.dot_dimension_numbers
    lhs, rhs = graph.operands(node)
    batch_sizes = [lhs.shape.dimensions[i] for i in numbers.lhs_batch_dimensions]
    lhs_free = _free(lhs, numbers.lhs_batch_dimensions, numbers.lhs_contracting_dimensions)
    rhs_free = _free(rhs, numbers.rhs_batch_dimensions, numbers.rhs_contracting_dimensions)
    contracted = math.prod(lhs.shape.dimensions[i] for i in numbers.lhs_contracting_dimensions)
    rows = math.prod(lhs.shape.dimensions[i] for i in lhs_free)
    columns = math.prod(rhs.shape.dimensions[i] for i in rhs_free)
    lhs_order = [*numbers.lhs_batch_dimensions, *lhs_free, *numbers.lhs_contracting_dimensions]
    rhs_order = [*numbers.rhs_batch_dimensions, *numbers.rhs_contracting_dimensions, *rhs_free]
    row_sizes, column_sizes = [rows] * bool(lhs_free), [columns] * bool(rhs_free)
    lhs = graph.reshape(graph.transpose(lhs, lhs_order), [*batch_sizes, *row_sizes, contracted])
    rhs = graph.reshape(graph.transpose(rhs, rhs_order), [*batch_sizes, contracted, *column_sizes])
    shape = array_shape(node.shape.element_type, [*batch_sizes, *row_sizes, *column_sizes])
    dot = graph.adopt(node, [lhs.id, rhs.id])
    dot.shape.CopyFrom(shape)
    count = len(batch_sizes)
    dot.ClearField("dot_dimension_numbers")
    dot.dot_dimension_numbers.lhs_batch_dimensions.extend(range(count))
    dot.dot_dimension_numbers.rhs_batch_dimensions.extend(range(count))
    dot.dot_dimension_numbers.lhs_contracting_dimensions.append(count + bool(lhs_free))
    dot.dot_dimension_numbers.rhs_contracting_dimensions.append(count)
    return graph.reshape(dot, list(node.shape.dimensions))


def _free(side: Node, batch: Sequence[int], contracting: Sequence[int]) -> list[int]:
    return [i for i in range(len(side.shape.dimensions)) if i not in batch and i not in contracting]


def turn_dots(graph: Graph) -> bool:
    """Rewrites each `transpose(dot(a, b))` of matrices as a `dot(b, a)`, and returns whether there were any.

    Only dots are rewritten whose result no other instruction takes.
    """
    changed = False
    users = graph.users()
    for node in graph:
        if node.opcode != "transpose" or list(node.dimensions) != [1, 0]:
            continue
        dot = graph.operand(node, 0)
        if dot.opcode != "dot" or len(users[dot.id]) != 1 or dot.id == graph.root_id or not _is_canonical(graph, dot):
            continue
        turned = graph.adopt(dot, reversed(dot.operand_ids))
        turned.shape.CopyFrom(array_shape(node.shape.element_type, node.shape.dimensions))
        numbers, old = turned.dot_dimension_numbers, dot.dot_dimension_numbers
        numbers.lhs_contracting_dimensions[:] = old.rhs_contracting_dimensions
        numbers.rhs_contracting_dimensions[:] = old.lhs_contracting_dimensions
        graph.replace(node, turned)
        changed = True
    graph.settle()
    return changed


def fold_transposes(graph: Graph) -> bool:
    """Lets dots take transposed operands as they were before the transpose, and returns whether there were any.

    That is done where a transpose leaves the batch dimensions in front, in order, and only swaps the two others.
    """
    changed = False
    for node in graph:
        if node.opcode != "dot" or not _is_canonical(graph, node):
            continue
        for position, side in enumerate(("lhs", "rhs")):
            source = graph.operand(node, position)
            batch = getattr(node.dot_dimension_numbers, f"{side}_batch_dimensions")
            if source.opcode != "transpose" or list(source.dimensions[: len(batch)]) != list(batch):
                continue
            contracting = getattr(node.dot_dimension_numbers, f"{side}_contracting_dimensions")
            contracting[:] = [source.dimensions[i] for i in contracting]
            node.operand_ids[position] = source.operand_ids[0]
            changed = True
    return changed
