"""How many floating-point operations a module's matrix products and convolutions take.

References: the rule of XLA's HloCostAnalysis: two operations for each multiply-add.
"""

from __future__ import annotations

import math

from alpa_dejavu.sharding.hlo._schema import HloInstructionProto, HloModuleProto


def count_flop_dot_conv_only(module: HloModuleProto) -> int:
    """The operations of all `dot` and `convolution` instructions, each computation counted once for each of its calls.

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
    """The operations of one instruction; 0 where it is neither a dot nor a convolution."""
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
