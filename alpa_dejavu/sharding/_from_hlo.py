"""Operators from the entry computation of an HLO module."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._op_sharding import from_op_sharding
from alpa_dejavu.sharding._operator import Attributes, ConvolutionDims, Dims, DotDims, IndexDims, Kind, ProgramOperator
from alpa_dejavu.sharding._spec import Shape, Spec
from alpa_dejavu.sharding.hlo.schema import HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto
from alpa_dejavu.sharding.hlo.shapes import INTEGERS, byte_size, is_tuple

Value = int | list["Value"]
"""The operator that a value comes from; for a tuple, those of its parts."""

_MARKERS = ("pipeline_marker", "identity")


@dataclasses.dataclass(frozen=True)
class HloProgram:
    """The engine's operators of an HLO module, with the instructions and results that they stand for.

    Attributes:
        operators: the operators, each after its operands; they are referred to by their indices.
        values: for each instruction's id the operator of its result; for a tuple a list of them.
        outputs: the operators of kind "output", in the order of the parts of the module's result.
    """

    operators: tuple[ProgramOperator, ...]
    values: dict[int, Value]
    outputs: tuple[int, ...]


def leaves(value: Value) -> list[int]:
    """Flattens nested lists of operators' indices, which stand for an HLO value of nested tuples.

    >>> leaves([1, [2, 3]])
    [1, 2, 3]
    """
    return [value] if isinstance(value, int) else [leaf for part in value for leaf in leaves(part)]


def leaf_shapes(shape: ShapeProto) -> list[ShapeProto]:
    """Returns the shapes of the arrays of an HLO shape, which may be a nested tuple's."""
    return [leaf for part in shape.tuple_shapes for leaf in leaf_shapes(part)] if is_tuple(shape) else [shape]


def read_program(module: HloModuleProto, mesh: LogicalMesh) -> HloProgram:
    """Turns an HLO module without calls into the engine's operators; what its entry computation calls (loops, branches)
    is taken as one operator each. Shardings already written in the module refer to `mesh`.
    """
    entry = next(c for c in module.computations if c.id == module.entry_computation_id)
    return _Reader(module, mesh).read(entry)


class _Reader:
    def __init__(self, module: HloModuleProto, mesh: LogicalMesh) -> None:
        self.module = module
        self.mesh = mesh
        self.operators: list[ProgramOperator] = []
        self.values: dict[int, Value] = {}

    def read(self, entry: HloComputationProto) -> HloProgram:
        for instruction in entry.instructions:
            self.values[instruction.id] = self._value(instruction)
        parameters = {
            i.parameter_number: self.values[i.id] for i in entry.instructions if i.opcode == "parameter"
        }
        replaced = {
            tuple(e.output_shape_index): parameters.get(e.parameter_number)
            for e in self.module.input_output_alias.entries if not e.parameter_shape_index
        }
        root = next(i for i in entry.instructions if i.id == entry.root_id)
        outputs = []
        pins = self._pins(root)
        for position, leaf in enumerate(leaves(self.values[root.id])):
            alias = replaced.get((position,)) if is_tuple(root.shape) else replaced.get(())
            place = alias if isinstance(alias, int) else None
            outputs.append(self._add(self.operators[leaf].as_output(leaf, place, pins[position])))
        return HloProgram(tuple(self.operators), self.values, tuple(outputs))

    def _pins(self, instruction: HloInstructionProto) -> list[Spec | None]:
        """Returns the shardings that an instruction already has, one for each array of its result."""
        shapes = leaf_shapes(instruction.shape)
        if not instruction.HasField("sharding"):
            return [None] * len(shapes)
        whole = instruction.sharding
        shardings = list(whole.tuple_shardings) if is_tuple(instruction.shape) else [whole]
        if len(shardings) != len(shapes):
            return [None] * len(shapes)
        return [from_op_sharding(g, len(s.dimensions), self.mesh) for g, s in zip(shardings, shapes, strict=True)]

    def _add(self, operator: ProgramOperator) -> int:
        self.operators.append(operator)
        return len(self.operators) - 1

    def _value(self, instruction: HloInstructionProto) -> Value:
        inputs = [self.values[i] for i in instruction.operand_ids]
        if instruction.opcode == "tuple":
            return inputs
        if instruction.opcode == "get-tuple-element":
            whole = inputs[0]
            assert isinstance(whole, list)
            return whole[instruction.tuple_index]
        if instruction.opcode == "opt-barrier" or (
            instruction.opcode == "custom-call" and instruction.custom_call_target in _MARKERS
        ):
            return self._marked(instruction, inputs[0] if len(inputs) == 1 else inputs)
        return self._computed(instruction, tuple(leaf for value in inputs for leaf in leaves(value)))

    def _marked(self, instruction: HloInstructionProto, value: Value) -> Value:
        """Returns an identity of each array in a value."""
        starts = instruction.metadata.op_name.endswith("$start")
        if isinstance(value, list):
            return [self._marked(instruction, part) for part in value]
        source = self.operators[value]
        return self._add(ProgramOperator(
            "identity", (value,), source.shape, source.itemsize, integer=source.integer,
            stage_start=starts and instruction.custom_call_target == "pipeline_marker",
        ))

    def _computed(self, instruction: HloInstructionProto, operands: tuple[int, ...]) -> Value:
        shapes = leaf_shapes(instruction.shape)
        tensors = [self.operators[i] for i in operands]
        kind = kind_of(instruction, [t.shape for t in tensors])
        pins = self._pins(instruction)
        places: list[int] = []
        for number, (shape, pin) in enumerate(zip(shapes, pins, strict=True)):
            dims = tuple(shape.dimensions)
            count = max(math.prod(dims), 1)
            itemsize = byte_size(shape) // count
            integer = shape.element_type in INTEGERS
            if kind == "parameter" or number == 0:
                places.append(self._add(ProgramOperator(
                    kind, operands, dims, itemsize, instruction.opcode, attributes_of(instruction, tensors),
                    integer=integer, pinned=pin,
                )))
            else:
                sibling = ProgramOperator("sibling", (places[0],), dims, itemsize, integer=integer, pinned=pin)
                places.append(self._add(sibling))
        return _nest(instruction.shape, iter(places).__next__)


def _nest(shape: ShapeProto, take: Callable[[], int]) -> Value:
    """Puts operators, one after the other, into the places of a shape."""
    return [_nest(part, take) for part in shape.tuple_shapes] if is_tuple(shape) else take()


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
    """Returns the kind by whose rules the engine cuts an HLO instruction; "opaque" if it has none."""
    opcode = instruction.opcode
    if opcode in ELEMENTWISE:
        shape = tuple(instruction.shape.dimensions)
        return "elementwise" if all(s in ((), shape) for s in operand_shapes) else "opaque"
    if opcode == "custom-call" and instruction.custom_call_target == "Sharding":
        return "elementwise"
    if opcode == "scatter" and len(operand_shapes) != 3:
        return "opaque"
    return _KINDS.get(opcode, "opaque")


def attributes_of(instruction: HloInstructionProto, operands: Sequence[ProgramOperator]) -> Attributes:
    """Returns the dimension numbers of an HLO instruction that its strategies depend on; None if none do."""
    opcode = instruction.opcode
    if opcode == "dot":
        dims = instruction.dot_dimension_numbers
        return DotDims(
            tuple(dims.lhs_batch_dimensions), tuple(dims.rhs_batch_dimensions),
            tuple(dims.lhs_contracting_dimensions), tuple(dims.rhs_contracting_dimensions),
        )
    if opcode == "convolution":
        numbers = instruction.convolution_dimension_numbers
        return ConvolutionDims(
            numbers.input_batch_dimension, numbers.input_feature_dimension, numbers.kernel_input_feature_dimension,
            numbers.kernel_output_feature_dimension, numbers.output_batch_dimension, numbers.output_feature_dimension,
            max(instruction.feature_group_count, 1), max(instruction.batch_group_count, 1),
        )
    if opcode in ("reduce-window", "select-and-scatter"):
        # Where a window is one element wide and yet moves or pads, it counts as wider.
        still = [w.stride in (0, 1) and not w.padding_low and not w.padding_high for w in instruction.window.dimensions]
        sizes = [int(w.size) for w in instruction.window.dimensions]
        return Dims(tuple(size if size != 1 or stays else 2 for size, stays in zip(sizes, still, strict=True)))
    if opcode == "reverse":
        return Dims(tuple(2 if d in instruction.dimensions else 1 for d in range(operands[0].rank)))
    if opcode in ("broadcast", "transpose", "reduce", "sort"):
        return Dims(tuple(instruction.dimensions))
    if opcode == "gather":
        return _gather(instruction, operands[0].shape)
    if opcode == "scatter":
        return _scatter(instruction, operands)
    return None


def _gather(instruction: HloInstructionProto, operand: Shape) -> IndexDims:
    dims = instruction.gather_dimension_numbers
    inside = [d for d in range(len(operand)) if d not in dims.collapsed_slice_dims]
    whole = [
        (source, result) for source, result in zip(inside, dims.offset_dims, strict=False)
        if instruction.gather_slice_sizes[source] == operand[source]
    ]
    return IndexDims(tuple(source for source, _ in whole), tuple(result for _, result in whole))


def _scatter(instruction: HloInstructionProto, operands: Sequence[ProgramOperator]) -> IndexDims:
    dims = instruction.scatter_dimension_numbers
    operand, updates = operands[0].shape, operands[2].shape
    inside = [d for d in range(len(operand)) if d not in dims.inserted_window_dims]
    whole = [
        (target, update) for target, update in zip(inside, dims.update_window_dims, strict=False)
        if operand[target] == updates[update]
    ]
    targets = tuple(target for target, _ in whole)
    return IndexDims(targets, targets, tuple(update for _, update in whole))
