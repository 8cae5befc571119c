"""A module made simpler before it is sharded: what the engine sees is what is computed, once.

Dots are brought to one form: the sharding engine knows them with the batch dimensions first and, beside them, one row
or column and one contracted dimension on each side. A transpose that only swaps a side's last two dimensions becomes
another contracted dimension instead.

References: the passes before auto-sharding in Alpa's fork of XLA (alpa_compiler.cc): DotDecomposer,
AlgebraicSimplifier, TupleSimplifier, TransposeFolding, HloCSE and HloDCE, run until nothing changes; before them
CallInliner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from alpa_dejavu.sharding.hlo._algebra import RULES
from alpa_dejavu.sharding.hlo.graph import HloGraph, computation, drop_unreachable, has_side_effect
from alpa_dejavu.sharding.hlo.schema import HloInstructionProto, HloModuleProto
from alpa_dejavu.sharding.hlo.shapes import array_shape

_MOST_ROUNDS = 50
_NEVER_MERGED = frozenset({"parameter", "rng", "rng-bit-generator", "constant"})
_COLLECTIVES = ("all-", "reduce-scatter", "collective-")


def simplify(module: HloModuleProto) -> HloModuleProto:
    """Returns a copy of a module without calls that computes the same with fewer and simpler instructions.

    Parameters keep their number and order, and pipeline markers stay where they are.
    """
    module = HloModuleProto.FromString(module.SerializeToString())
    graph = HloGraph(module)
    canonical_dots(graph)
    for _ in range(_MOST_ROUNDS):
        changed = _apply_rules(graph)
        changed |= turn_dots(graph)
        changed |= fold_transposes(graph)
        changed |= merge_equal(graph)
        changed |= graph.drop_dead()
        if not changed:
            break
    graph.close()
    drop_unreachable(module)
    return module


def _apply_rules(graph: HloGraph) -> bool:
    changed = False
    for node in graph.order():
        for rule in RULES.get(node.opcode, ()):
            if any(graph.resolve(i) != i for i in node.operand_ids):
                node.operand_ids[:] = [graph.resolve(i) for i in node.operand_ids]
            simpler = rule(graph, node)
            if simpler is not None and simpler.id != node.id:
                graph.replace(node, simpler)
                changed = True
                break
    graph.settle()
    return changed


def merge_equal(graph: HloGraph) -> bool:
    """Merges instructions that compute the same, scalar constants included, and returns whether there were any."""
    seen: dict[bytes, HloInstructionProto] = {}
    changed = False
    for node in graph.order():
        node.operand_ids[:] = [graph.resolve(i) for i in node.operand_ids]
        if not _may_merge(node):
            continue
        key = _key(node)
        first = seen.setdefault(key, node)
        if first is not node:
            graph.replace(node, first)
            changed = True
    graph.settle()
    return changed


def _may_merge(node: HloInstructionProto) -> bool:
    if node.opcode == "constant":
        return not node.shape.dimensions
    return (
        node.opcode not in _NEVER_MERGED
        and not has_side_effect(node)
        and not node.opcode.startswith(_COLLECTIVES)
        and not node.control_predecessor_ids
        and not node.called_computation_ids
    )


def _key(node: HloInstructionProto) -> bytes:
    """Returns a key that two instructions have in common if and only if they compute the same."""
    bare = HloInstructionProto.FromString(node.SerializeToString())
    for field in ("name", "id", "metadata"):
        bare.ClearField(field)
    for shape in (bare.shape, bare.literal.shape) if bare.opcode == "constant" else (bare.shape,):
        shape.ClearField("layout")
        shape.ClearField("is_dynamic_dimension")
    return bare.SerializeToString(deterministic=True)


def inline_calls(module: HloModuleProto) -> HloModuleProto:
    """Returns a copy of a module with every `call` inlined; the computations of reductions, loops and branches stay."""
    module = HloModuleProto.FromString(module.SerializeToString())
    for target in list(module.computations):
        if all(node.opcode != "call" for node in target.instructions):
            continue
        graph = HloGraph(module, target)
        while calls := [node for node in graph if node.opcode == "call"]:
            for call in calls:
                graph.replace(call, _inline(graph, call))
            graph.settle()
            graph.drop_dead()
        graph.close()
    drop_unreachable(module)
    return module


def _inline(graph: HloGraph, call: HloInstructionProto) -> HloInstructionProto:
    """Copies the called computation's instructions to where the call is; returns the copy of its root."""
    called = computation(graph.module, call.called_computation_ids[0])
    copies: dict[int, int] = {}
    for node in called.instructions:
        if node.opcode == "parameter":
            copies[node.id] = call.operand_ids[node.parameter_number]
        else:
            copies[node.id] = graph.adopt(node, [copies[i] for i in node.operand_ids]).id
    return graph.nodes[copies[called.root_id]]


Node = HloInstructionProto


def canonical_dots(graph: HloGraph) -> bool:
    """Rewrites every `dot` that isn't in the engine's form, and returns whether there were any: each side has its batch
    dimensions first, then at most one free dimension and one contracted one.
    """
    for node in graph:
        if node.opcode == "dot" and not _is_canonical(graph, node):
            graph.replace(node, _decompose(graph, node))
    return graph.settle()


def _is_canonical(graph: HloGraph, node: Node) -> bool:
    numbers = node.dot_dimension_numbers
    batch = list(range(len(numbers.lhs_batch_dimensions)))
    return (
        len(numbers.lhs_contracting_dimensions) == 1
        and all(len(side.shape.dimensions) <= len(batch) + 2 for side in graph.operands(node))
        and list(numbers.lhs_batch_dimensions) == batch
        and list(numbers.rhs_batch_dimensions) == batch
    )


def _decompose(graph: HloGraph, node: Node) -> Node:
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


def turn_dots(graph: HloGraph) -> bool:
    """Rewrites `transpose(dot(a, b))` of matrices that nothing else takes as `dot(b, a)`; returns whether there were
    any.
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


def fold_transposes(graph: HloGraph) -> bool:
    """Lets dots take operands as before a transpose of their last two dimensions; returns whether there were any."""
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
