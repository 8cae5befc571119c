"""Keeping spread-out constants, and the shardings on them, through a way that leads over MLIR.

MLIR folds the broadcast of a constant into one large constant, shares it between all who read it, and forgets its
sharding. A barrier behind the scalar keeps it from seeing that.
"""

from __future__ import annotations

from alpa_dejavu.sharding.hlo.graph import HloGraph
from alpa_dejavu.sharding.hlo.schema import HloInstructionProto, HloModuleProto, OpSharding

_BARRIER = "opt-barrier"
_SHARDING_CALL = "Sharding"
_REPLICATED, _TILED = 0, 3
_FORGOTTEN = frozenset({
    "concatenate", "dynamic-slice", "dynamic-update-slice", "pad", "reduce-window", "reverse", "scatter",
    "select-and-scatter", "slice", "sort",
})  # fmt: skip
"""The opcodes of array operators whose shardings XLA's importer into MLIR doesn't write down."""


def shield_constants(module: HloModuleProto) -> HloModuleProto:
    """Returns a copy of an HLO module with an optimization barrier between each constant and its broadcasts.

    It keeps MLIR from folding these into large constants that have no sharding.
    """
    module = HloModuleProto.FromString(module.SerializeToString())
    graph = HloGraph(module)
    shields: dict[int, HloInstructionProto] = {}
    for node in graph:
        if node.opcode != "broadcast" or graph.operand(node, 0).opcode != "constant":
            continue
        constant = graph.operand(node, 0)
        if constant.id not in shields:
            shields[constant.id] = graph.add(_BARRIER, constant.shape, [constant], sharding=OpSharding(type=0))
        node.operand_ids[0] = shields[constant.id].id
    graph.close()
    return module


def shield_copies(module: HloModuleProto) -> HloModuleProto:
    """Returns a copy of an HLO module with jax's `Sharding` custom calls in place of copies with a tiled sharding.

    MLIR drops copies, and with them the demand that a value be resharded before it is used. Replicated copies may be
    dropped: the instructions that use them ask for that anyway.
    """
    module = HloModuleProto.FromString(module.SerializeToString())
    for part in module.computations:
        for node in part.instructions:
            if node.opcode == "copy" and node.sharding.type == _TILED:
                node.opcode = "custom-call"
                node.custom_call_target = _SHARDING_CALL
    return module


def shield_operators(module: HloModuleProto) -> HloModuleProto:
    """Returns a copy of an HLO module with a `Sharding` custom call after each operator whose sharding MLIR forgets.

    XLA would cut these otherwise as their readers are cut: a slice of a whole tensor, of which each device needs a part
    only, would be computed from cut tensors, by a permutation of devices for each piece.
    """
    module = HloModuleProto.FromString(module.SerializeToString())
    for part in module.computations:
        graph = HloGraph(module, part)
        calls = {
            node.id: graph.add("custom-call", node.shape, [node], sharding=node.sharding,
                               custom_call_target=_SHARDING_CALL)
            for node in graph
            if node.opcode in _FORGOTTEN and node.shape.dimensions and node.sharding.type in (_REPLICATED, _TILED)
            and node.HasField("sharding")
        }  # fmt: skip
        if not calls:
            continue
        for node in part.instructions:
            node.operand_ids[:] = [calls[i].id if i in calls else i for i in node.operand_ids]
        if graph.root_id in calls:
            graph.root_id = calls[graph.root_id].id
        graph.close()
    return module


def unshield_constants(module: HloModuleProto) -> HloModuleProto:
    """Returns a copy of an HLO module without the optimization barriers that take a constant."""
    module = HloModuleProto.FromString(module.SerializeToString())
    for target in module.computations:
        graph = HloGraph(module, target)
        barriers = [
            node for node in graph
            if node.opcode == _BARRIER and len(node.operand_ids) == 1 and graph.operand(node, 0).opcode == "constant"
        ]
        for node in barriers:
            graph.replace(node, graph.operand(node, 0))
        if barriers:
            graph.close()
    return module
