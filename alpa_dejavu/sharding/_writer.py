"""Operators written down one after the other, with the values of a jaxpr that they stand for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import final

from alpa_dejavu.layers.features.flatten import Step, Value
from alpa_dejavu.sharding._operator import Attributes, Dims, Kind, Operator
from alpa_dejavu.sharding._spec import Shape


@final
class Writer:
    """A writer of the sharding engine's operators, which keeps the jaxpr values that they stand for.

    Attributes:
        operators: those appended so far.
        places: for each value the operator by which it is cut.
        roots: for values that only rename or reshape another one, that one.
        of_step: for each step the operator of its result, -1 where it has none.
    """

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.places: dict[Value, int] = {}
        self.roots: dict[Value, Value] = {}
        self.of_step: list[int] = []
        self._constants: dict[tuple[Shape, int], int] = {}
        self._moved: dict[Operator, int] = {}

    def place(self, value: Value) -> int:
        """Returns the index of a value's operator; a constant is made when it is asked for."""
        return self.places[value] if value in self.places else self.constant(value.shape, itemsize(value))

    def source(self, value: Value) -> int:
        """Returns the index of the parameter operator for a value from outside; it is appended if it is new."""
        if value not in self.places:
            self.places[value] = self.add("parameter", (), value)
        return self.places[value]

    def add(
        self, kind: Kind, operands: Sequence[int], like: Value, name: str = "", attributes: Attributes = None,
        shape: Shape | None = None, repeats: float = 1.0,
    ) -> int:  # fmt: skip
        """Appends an operator of a value's element type and (unless another is given) shape; returns its index."""
        integer = like.dtype.startswith(("int", "uint"))
        made = Operator(
            kind, tuple(operands), like.shape if shape is None else shape, itemsize(like), name, attributes,
            integer=integer, repeats=repeats,
        )  # fmt: skip
        self.operators.append(made)
        return len(self.operators) - 1

    def constant(self, shape: Shape, size: int) -> int:
        """Returns the index of a constant operator of some shape and element size; it is appended if it is new."""
        if (shape, size) not in self._constants:
            self.operators.append(Operator("constant", (), shape, size))
            self._constants[shape, size] = len(self.operators) - 1
        return self._constants[shape, size]

    def is_constant(self, place: int) -> bool:
        """Returns whether an operator's result is a constant, spread out or not."""
        operator = self.operators[place]
        return operator.kind == "constant" or (operator.kind == "broadcast" and self.is_constant(operator.operands[0]))

    def same(self, step: Step, number: int = 0) -> None:
        """Notes that a step's result takes no memory of its own, since it only renames or reshapes an operand."""
        source = step.inputs[number]
        self.roots[step.outputs[number]] = self.roots.get(source, source)

    def move(self, kind: Kind, operand: int, shape: Shape, repeats: float, attributes: Attributes = None) -> int:
        """Appends an operator that only moves an operand's elements about, unless there is one; returns its index."""
        made = dataclasses.replace(
            self.operators[operand], kind=kind, operands=(operand,), shape=shape, name="", attributes=attributes,
            repeats=repeats, alias=None, gradient=False,
        )  # fmt: skip
        if made not in self._moved:
            self.operators.append(made)
            self._moved[made] = len(self.operators) - 1
        return self._moved[made]

    def reshape(self, operand: int, shape: Shape, repeats: float) -> int:
        """Appends a reshape of an operand, and returns its index; of reshapes in a row the last one is enough."""
        while self.operators[operand].kind == "reshape" and self.operators[operand].shape != shape:
            (operand,) = self.operators[operand].operands
        return operand if self.operators[operand].shape == shape else self.move("reshape", operand, shape, repeats)

    def spread(self, operand: int, dims: tuple[int, ...], shape: Shape, repeats: float) -> int:
        """Appends a broadcast that puts an operand's dimensions at places of a shape, those of size 1 spread out."""
        own = self.operators[operand].shape
        if math.prod(own) == math.prod(shape):
            return self.reshape(operand, shape, repeats)
        kept = [d for d, size in enumerate(own) if size == shape[dims[d]]]
        operand = self.reshape(operand, tuple(own[d] for d in kept), repeats)
        return self.move("broadcast", operand, shape, repeats, Dims(tuple(dims[d] for d in kept)))


def itemsize(value: Value) -> int:
    """Returns the bytes of one element of a value."""
    return int(value.num_bytes // value.size) if value.size else 0
