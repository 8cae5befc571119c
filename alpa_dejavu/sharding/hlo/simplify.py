"""A module made simpler before it is sharded: what the engine sees is what is computed, once.

References: the passes before auto-sharding in Alpa's fork of XLA (alpa_compiler.cc): DotDecomposer,
AlgebraicSimplifier, TupleSimplifier, TransposeFolding, HloCSE and HloDCE, run until nothing changes; before them
CallInliner.
"""

from __future__ import annotations

from alpa_dejavu.sharding.hlo._algebra import RULES
from alpa_dejavu.sharding.hlo._dots import canonical_dots, fold_transposes, turn_dots
from alpa_dejavu.sharding.hlo._graph import Graph, computation, drop_unreachable, has_side_effect
from alpa_dejavu.sharding.hlo._schema import HloInstructionProto, HloModuleProto

_MOST_ROUNDS = 50
_NEVER_MERGED = frozenset({"parameter", "rng", "rng-bit-generator", "constant"})
_COLLECTIVES = ("all-", "reduce-scatter", "collective-")


def simplify(module: HloModuleProto) -> HloModuleProto:
    """Returns a copy of a module without calls that computes the same with fewer and simpler instructions.

    Parameters keep their number and order, and pipeline markers stay where they are.
    """
    module = HloModuleProto.FromString(module.SerializeToString())
    graph = Graph(module)
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


def _apply_rules(graph: Graph) -> bool:
    changed = False
    for node in graph.order():
        for rule in RULES.get(node.opcode, ()):
            if any(graph.resolve(i) != i for i in node.operand_ids):
                node.operand_ids[:] = [graph.resolve(i) for i in node.operand_ids]
            found = rule(graph, node)
            if found is not None and found.id != node.id:
                graph.replace(node, found)
                changed = True
                break
    graph.settle()
    return changed


def merge_equal(graph: Graph) -> bool:
    """Merges HLO instructions that compute the same, scalar constants included, and returns whether there were any."""
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
        graph = Graph(module, target)
        while calls := [node for node in graph if node.opcode == "call"]:
            for call in calls:
                graph.replace(call, _inline(graph, call))
            graph.settle()
            graph.drop_dead()
        graph.close()
    drop_unreachable(module)
    return module


def _inline(graph: Graph, call: HloInstructionProto) -> HloInstructionProto:
    """Copies the called computation's instructions to where the call is; returns the copy of its root."""
    called = computation(graph.module, call.called_computation_ids[0])
    copies: dict[int, int] = {}
    for node in called.instructions:
        if node.opcode == "parameter":
            copies[node.id] = call.operand_ids[node.parameter_number]
        else:
            copies[node.id] = graph.adopt(node, [copies[i] for i in node.operand_ids]).id
    return graph.nodes[copies[called.root_id]]
