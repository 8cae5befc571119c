"""Gradient accumulation without communication in each micro-batch.

A module that adds a micro-batch's gradient to the sum so far all-reduces the gradient first. Moved behind the sum, the
all-reduce is needed once, after the last micro-batch: the executable runs without it before.

References: the semantics of Alpa's pass GradAccRewrite and of `get_grad_sync_channel_ids` (alpa.mesh_executable).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from alpa_dejavu.sharding.hlo.graph import HloGraph, entry, reduction_of, scalar_value
from alpa_dejavu.sharding.hlo.schema import HloInstructionProto, HloModuleProto
from alpa_stock_jax.hlo_collectives import GRADIENT_NAME, is_gradient

_FORM = frozenset({"bitcast", "reshape", "copy", "transpose", "negate"})


def rewrite_gradient_accumulation(module: HloModuleProto, outputs: Sequence[int] | None = None) -> HloModuleProto:
    """Returns a copy of a partitioned module that all-reduces sums of gradients instead of gradients.

    `old + all_reduce(new)` as a result becomes `all_reduce(old + new)`, also where the all-reduced value is scaled by a
    constant first, as the mean of a loss is. This is another function: it is right only if all
    runs but the last leave out the all-reduces that `gradient_channels` names, on sums that start at zero.

    Args:
        module: a partitioned module without calls.
        outputs: the numbers of the results that are sums of gradients; by default all.
    """
    module = HloModuleProto.FromString(module.SerializeToString())
    graph = HloGraph(module)
    if graph.root.opcode != "tuple":
        return module
    users = graph.users()
    for position in range(len(graph.root.operand_ids)) if outputs is None else outputs:
        total = graph.operand(graph.root, position)
        if total.opcode == "add" and len(users[total.id]) == 1:
            _reduce_late(graph, total, users)
    graph.close()
    return module


def _reduce_late(graph: HloGraph, total: HloInstructionProto, users: dict[int, list[HloInstructionProto]]) -> None:
    """Moves the all-reduce above a sum, if there is one, behind it."""
    for position in (1, 0):
        chain = _linear_chain(graph, graph.operand(total, position), users)
        if not chain:
            continue
        *above, all_reduce = chain
        local = graph.operand(all_reduce, 0)
        for node in (above or [total])[-1:]:
            node.operand_ids[:] = [local.id if i == all_reduce.id else i for i in node.operand_ids]
        late = graph.adopt(all_reduce, [total.id])
        late.shape.CopyFrom(total.shape)
        late.metadata.op_name = GRADIENT_NAME
        graph.root.operand_ids[:] = [late.id if i == total.id else i for i in graph.root.operand_ids]
        return


def _linear_chain(
    graph: HloGraph, node: HloInstructionProto, users: dict[int, list[HloInstructionProto]]
) -> list[HloInstructionProto]:
    """Returns the instructions from one up to an all-reduce that may be done after them; none if it isn't there."""
    chain = [node]
    while len(users[node.id]) == 1:
        if node.opcode == "all-reduce":
            is_sum = reduction_of(graph.module, node) == "add" and len(node.operand_ids) == 1
            return chain if is_sum else []
        following = _linear_operand(graph, node)
        if following is None:
            return []
        node = following
        chain.append(node)
    return []


def _linear_operand(graph: HloGraph, node: HloInstructionProto) -> HloInstructionProto | None:
    """Returns the operand that an instruction scales by a constant or puts into another form; None for other ones."""
    if node.opcode in _FORM:
        return graph.operand(node, 0)
    if node.opcode in ("multiply", "divide") and scalar_value(graph, graph.operand(node, 1)) is not None:
        return graph.operand(node, 0)
    if node.opcode == "multiply" and scalar_value(graph, graph.operand(node, 0)) is not None:
        return graph.operand(node, 1)
    return None


def gradient_channels(module: HloModuleProto) -> list[int]:
    """Returns the channel numbers of a module's all-reduces of sums of gradients over micro-batches, ascending."""
    return sorted({
        node.channel_id for node in entry(module).instructions if node.opcode == "all-reduce" and is_gradient(node)
    })  # fmt: skip


def without_all_reduces(module: HloModuleProto, channels: Collection[int]) -> HloModuleProto:
    """Returns a copy of an HLO module without the all-reduces of the given channels: each gives way to its operand."""
    module = HloModuleProto.FromString(module.SerializeToString())
    graph = HloGraph(module)
    for node in graph:
        if node.opcode == "all-reduce" and node.channel_id in channels:
            taken = graph.operands(node)
            graph.replace(node, taken[0] if len(taken) == 1 else graph.tuple(taken))
    graph.close()
    return module
