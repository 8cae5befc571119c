"""The kind of operator that an HLO instruction is, and its dimensions."""

from collections.abc import Sequence
from typing import Any

from alpa_dejavu.sharding._operator import Attributes, ConvolutionDims, Dims, DotDims, IndexDims, Kind, Operator
from alpa_dejavu.sharding._spec import Shape
from alpa_dejavu.sharding.hlo._schema import HloInstructionProto

ELEMENTWISE = frozenset("""
    abs add and atan2 bitcast bitcast-convert cbrt ceil clamp compare complex convert copy cosine count-leading-zeros
    divide erf exponential exponential-minus-one floor imag is-finite log log-plus-one logistic maximum minimum
    multiply negate not or popcnt power real reduce-precision remainder round-nearest-afz round-nearest-even rsqrt
    select shift-left shift-right-arithmetic shift-right-logical sign sine sqrt subtract tan tanh xor map
    stochastic-convert
""".split())

_KINDS: dict[str, Kind] = {
    "parameter": "parameter", "constant": "constant", "rng": "random", "iota": "iota", "broadcast": "broadcast",
    "reshape": "reshape", "transpose": "transpose", "slice": "same_size", "pad": "same_size",
    "concatenate": "same_size", "dynamic-slice": "same_size", "dynamic-update-slice": "same_size",
    "reduce-window": "window", "select-and-scatter": "window", "reverse": "window", "reduce": "reduce", "sort": "sort",
    "dot": "dot", "convolution": "convolution", "gather": "gather", "scatter": "scatter",
}


def kind_of(instruction: HloInstructionProto, operand_shapes: Sequence[Shape]) -> Kind:
    """The kind of an instruction; "opaque" for what the engine does not know."""
    opcode = instruction.opcode
    if opcode in ELEMENTWISE:
        shape = tuple(instruction.shape.dimensions)
        return "elementwise" if all(s in ((), shape) for s in operand_shapes) else "opaque"
    if opcode == "custom-call" and instruction.custom_call_target == "Sharding":
        return "elementwise"
    if opcode == "scatter" and len(operand_shapes) != 3:
        return "opaque"
    return _KINDS.get(opcode, "opaque")


def attributes_of(instruction: HloInstructionProto, operands: Sequence[Operator]) -> Attributes:
    """The dimensions that the strategies of the instruction's kind need."""
    opcode = instruction.opcode
    if opcode == "dot":
        dims = instruction.dot_dimension_numbers
        return DotDims(
            tuple(dims.lhs_batch_dimensions), tuple(dims.rhs_batch_dimensions),
            tuple(dims.lhs_contracting_dimensions), tuple(dims.rhs_contracting_dimensions),
        )
    if opcode == "convolution":
        return _convolution(instruction)
    if opcode in ("reduce-window", "select-and-scatter"):
        return Dims(tuple(_reach(w) for w in instruction.window.dimensions))
    if opcode == "reverse":
        return Dims(tuple(2 if d in instruction.dimensions else 1 for d in range(operands[0].rank)))
    if opcode in ("broadcast", "transpose", "reduce", "sort"):
        return Dims(tuple(instruction.dimensions))
    if opcode == "gather":
        return _gather(instruction, operands[0].shape)
    if opcode == "scatter":
        return _scatter(instruction, operands)
    return None


def _reach(window: Any) -> int:
    """The width of a window, or 2 where it is one element wide and yet moves or pads."""
    still = window.stride in (0, 1) and not window.padding_low and not window.padding_high
    return int(window.size) if window.size != 1 or still else 2


def _convolution(instruction: HloInstructionProto) -> ConvolutionDims:
    dims = instruction.convolution_dimension_numbers
    return ConvolutionDims(
        dims.input_batch_dimension, dims.input_feature_dimension, dims.kernel_input_feature_dimension,
        dims.kernel_output_feature_dimension, dims.output_batch_dimension, dims.output_feature_dimension,
        max(instruction.feature_group_count, 1), max(instruction.batch_group_count, 1),
    )


def _gather(instruction: HloInstructionProto, operand: Shape) -> IndexDims:
    dims = instruction.gather_dimension_numbers
    inside = [d for d in range(len(operand)) if d not in dims.collapsed_slice_dims]
    whole = [
        (source, result) for source, result in zip(inside, dims.offset_dims, strict=False)
        if instruction.gather_slice_sizes[source] == operand[source]
    ]
    return IndexDims(tuple(source for source, _ in whole), tuple(result for _, result in whole))


def _scatter(instruction: HloInstructionProto, operands: Sequence[Operator]) -> IndexDims:
    dims = instruction.scatter_dimension_numbers
    operand, updates = operands[0].shape, operands[2].shape
    inside = [d for d in range(len(operand)) if d not in dims.inserted_window_dims]
    whole = [
        (target, update) for target, update in zip(inside, dims.update_window_dims, strict=False)
        if operand[target] == updates[update]
    ]
    targets = tuple(target for target, _ in whole)
    return IndexDims(targets, targets, tuple(update for _, update in whole))
