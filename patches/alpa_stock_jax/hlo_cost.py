"""The seconds that a partitioned module takes, from measured collectives and matrix products.

Only collectives and products are counted; what is fused around them is left out, as in Alpa's cost model.

References: the semantics of Alpa's `estimate_hlo_module_cost`; the tables are those of
`alpa.mesh_profiling.MeshProfilingResult`. Operations are counted by the rule of XLA's HloCostAnalysis: two for each
multiply-add.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

from alpa_dejavu.sharding import interpolate
from alpa_dejavu.sharding.hlo.schema import HloInstructionProto, HloModuleProto
from alpa_dejavu.sharding.hlo.shapes import BF16, F16, num_elements
from alpa_stock_jax.hlo_collectives import Groups, groups_of

Table = Mapping[tuple[Groups, str], Sequence[tuple[float, float]]]

_MEASURED = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


@dataclasses.dataclass(frozen=True)
class MeasuredCosts:
    """The seconds that collectives and matrix products were measured to take on a mesh.

    Attributes:
        collectives: for each kind of collective, (groups, "f32" or "f16") -> pairs of elements of the whole value and
            seconds, in ascending order.
        products: ((), "f32" or "f16") -> pairs of floating-point operations and seconds, in ascending order.
    """

    collectives: Mapping[str, Table]
    products: Table


def estimate_cost(
    module: HloModuleProto,
    costs: MeasuredCosts,
    num_partitions: int,
    num_micro_batches: int = 1,
    gradient_channels: Collection[int] = (),
) -> float:
    """Estimates the seconds of one run of a partitioned module from measured collectives and matrix products.

    Args:
        module: one partition; loop bodies count once.
        costs: what was measured on the mesh.
        num_partitions: the number of partitions.
        num_micro_batches: the gradients' all-reduces are done once in that many runs.
        gradient_channels: the channels of these all-reduces.

    Raises:
        ValueError: if a collective's kind was never measured in groups of its size.
    """
    total = 0.0
    for part in module.computations:
        shapes = {node.id: node.shape for node in part.instructions}
        for node in part.instructions:
            if node.opcode in _MEASURED:
                size = max(num_elements(node.shape), sum(num_elements(shapes[i]) for i in node.operand_ids))
                seconds = _collective(node, costs, size, num_partitions)
                total += seconds / (num_micro_batches if node.channel_id in gradient_channels else 1)
            elif node.opcode in ("dot", "convolution"):
                flop = instruction_flop(node, [list(shapes[i].dimensions) for i in node.operand_ids])
                total += _beyond_nothing(_points(costs.products, (), node), flop)
    return total


def _collective(node: HloInstructionProto, costs: MeasuredCosts, size: int, num_partitions: int) -> float:
    groups = groups_of(node) or (tuple(range(num_partitions)),)
    if len(groups[0]) == 1:
        return 0.0
    return _beyond_nothing(_points(costs.collectives.get(node.opcode, {}), groups, node), size)


def _points(table: Table, groups: Groups, node: HloInstructionProto) -> Sequence[tuple[float, float]]:
    """The measurements for an instruction: in its groups, or else in others of the same size."""
    kind = "f16" if node.shape.element_type in (F16, BF16) else "f32"
    size = len(groups[0]) if groups else 0
    same_size = [key for key in table if key[1] == kind and (len(key[0][0]) if key[0] else 0) == size]
    for key in ((groups, kind), *same_size):
        if table.get(key):
            return table[key]
    raise ValueError(
        f"no {node.opcode} of {kind} was measured in groups like {groups}; measured were {sorted(map(str, table))}: "
        "profile the cluster for this mesh shape (DeviceCluster.profile_all)"
    )


def _beyond_nothing(points: Sequence[tuple[float, float]], size: float) -> float:
    """Seconds for a size, beyond those of an empty call, on the line between the measurements around it."""
    finite = [(s, t) for s, t in points if math.isfinite(t)]
    if len(finite) < 2:
        return math.inf if not finite else 0.0
    return max(0.0, interpolate(finite, size) - interpolate(finite, 0.0))


def count_flop_dot_conv_only(module: HloModuleProto) -> int:
    """Counts the operations of all `dot` and `convolution` instructions of a module.

    Each computation is counted once for each of its calls.

    The body of a loop counts once: how often it runs isn't known from the module.
    """
    by_id = {part.id: part for part in module.computations}
    memory: dict[int, int] = {}

    def count(computation_id: int) -> int:
        if computation_id not in memory:
            memory[computation_id] = 0
            instructions = by_id[computation_id].instructions
            shapes = {node.id: list(node.shape.dimensions) for node in instructions}
            memory[computation_id] = sum(
                _flop(node, shapes) + sum(count(i) for i in node.called_computation_ids) for node in instructions
            )
        return memory[computation_id]

    return count(module.entry_computation_id)


def instruction_flop(node: HloInstructionProto, operand_dimensions: list[list[int]]) -> int:
    """Returns the floating-point operations of one HLO instruction; 0 where it is neither a dot nor a convolution."""
    size = math.prod(node.shape.dimensions)
    if node.opcode == "dot":
        contracting = node.dot_dimension_numbers.lhs_contracting_dimensions
        return 2 * size * math.prod(operand_dimensions[0][i] for i in contracting)
    if node.opcode == "convolution":
        return 2 * size * _kernel_size(node, operand_dimensions[1])
    return 0


def _kernel_size(node: HloInstructionProto, kernel: list[int]) -> int:
    """The multiply-adds that one element of a convolution's result takes."""
    numbers = node.convolution_dimension_numbers
    positions = [*numbers.kernel_spatial_dimensions, numbers.kernel_input_feature_dimension]
    return math.prod(kernel[i] for i in positions)


def _flop(node: HloInstructionProto, shapes: dict[int, list[int]]) -> int:
    return instruction_flop(node, [shapes[i] for i in node.operand_ids])
