"""Gradient accumulation without communication in each micro-batch.

A module that adds a micro-batch's gradient to the sum so far all-reduces the gradient first. Moved behind the sum, the
all-reduce is needed once, after the last micro-batch: the executable runs without it before.

References: the semantics of Alpa's pass GradAccRewrite and of `get_grad_sync_channel_ids` (alpa.mesh_executable).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from alpa_dejavu.hlo._collectives import GRADIENT_NAME, is_gradient
from alpa_dejavu.hlo._graph import Graph, entry
from alpa_dejavu.hlo._schema import HloInstructionProto, HloModuleProto


def rewrite_gradient_accumulation(module: HloModuleProto, outputs: Sequence[int] | None = None) -> HloModuleProto:
    """A copy of a partitioned module that all-reduces sums of gradients instead of gradients.

    `old + all_reduce(new)` as a result becomes `all_reduce(old + new)`. This is another function: it is right only if all
    runs but the last leave out the all-reduces that `gradient_channels` names, on sums that start at zero.

    Args:
        module: a partitioned module without calls.
        outputs: the numbers of the results that are sums of gradients; by default all.
    """
    module = HloModuleProto.FromString(module.SerializeToString())
    graph = Graph(module)
    if graph.root.opcode != "tuple":
        return module
    users = graph.users()
    for position in range(len(graph.root.operand_ids)) if outputs is None else outputs:
        total = graph.operand(graph.root, position)
        if total.opcode != "add" or len(users[total.id]) != 1:
            continue
        reduced = _all_reduce_operand(graph, total)
        if reduced is None or len(users[total.operand_ids[reduced]]) != 1:
            continue
        all_reduce = graph.operand(total, reduced)
        total.operand_ids[reduced] = all_reduce.operand_ids[0]
        all_reduce.operand_ids[0] = total.id
        all_reduce.metadata.op_name = GRADIENT_NAME
        graph.root.operand_ids[position] = all_reduce.id
    graph.close()
    return module


def _all_reduce_operand(graph: Graph, total: HloInstructionProto) -> int | None:
    """Which operand of a sum is an all-reduce; the second is asked first, for gradients are added to the sum so far."""
    for position in (1, 0):
        operand = graph.operand(total, position)
        if operand.opcode == "all-reduce" and len(operand.operand_ids) == 1:
            return position
    return None


def gradient_channels(module: HloModuleProto) -> list[int]:
    """The channels of the all-reduces of sums of gradients, in ascending order."""
    return sorted({
        node.channel_id for node in entry(module).instructions if node.opcode == "all-reduce" and is_gradient(node)
    })  # fmt: skip


def without_all_reduces(module: HloModuleProto, channels: Collection[int]) -> HloModuleProto:
    """A copy of the module in which the all-reduces of the given channels give back what they take."""
    module = HloModuleProto.FromString(module.SerializeToString())
    graph = Graph(module)
    for node in graph:
        if node.opcode == "all-reduce" and node.channel_id in channels:
            taken = graph.operands(node)
            graph.replace(node, taken[0] if len(taken) == 1 else graph.tuple(taken))
    graph.close()
    return module
