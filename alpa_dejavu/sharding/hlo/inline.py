"""Calls replaced by what they call, so that a module is one flat computation (and the bodies of its loops).

References: the semantics of XLA's CallInliner.
"""

from __future__ import annotations

from alpa_dejavu.sharding.hlo._graph import Graph, computation, drop_unreachable
from alpa_dejavu.sharding.hlo._schema import HloInstructionProto, HloModuleProto


def inline_calls(module: HloModuleProto) -> HloModuleProto:
    """A copy of the module in which no `call` is left; the computations of reductions, loops and branches stay."""
    module = HloModuleProto.FromString(module.SerializeToString())
    for target in list(module.computations):
        graph = Graph(module, target)
        calls = [node for node in graph if node.opcode == "call"]
        while calls:
            for call in calls:
                graph.replace(call, _inline(graph, call))
            graph.settle()
            graph.drop_dead()
            calls = [node for node in graph if node.opcode == "call"]
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
