"""Operators written down one after the other, with the values of a jaxpr that they stand for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import final

from alpa_dejavu.layers.features.flatten import Step, Value
from alpa_dejavu.sharding._operator import Attributes, Dims, Kind, ProgramOperator
from alpa_dejavu.sharding._spec import Shape


@final
class OperatorWriter:
    """A writer of a list of the engine's operators, which keeps the jaxpr values that they stand for.

    Attributes:
        operators: the operators appended so far; others refer to them by their index.
        places: for each jaxpr value the index of the operator by which it is cut.
        roots: for each value that only renames or reshapes another value, that other value.
        of_step: for each operation of the jaxpr the index of the operator of its result, -1 where it has no result.
        starts: for each operation of the jaxpr how many operators there were before it.
    """

    def __init__(self) -> None:
        self.operators: list[ProgramOperator] = []
        self.places: dict[Value, int] = {}
        self.roots: dict[Value, Value] = {}
        self.of_step: list[int] = []
        self.starts: list[int] = []
        self._constants: dict[tuple[Shape, int], int] = {}
        self._moved: dict[ProgramOperator, int] = {}

    def place(self, value: Value) -> int:
        """Returns the index of the operator of a value; if it has none, a constant is appended."""
        return self.places[value] if value in self.places else self.constant(value.shape, itemsize(value))

    def source(self, value: Value) -> int:
        """Returns the index of the parameter operator for an operand of a jaxpr; it is appended if it is new."""
        if value not in self.places:
            self.places[value] = self.add("parameter", (), value)
        return self.places[value]

    def add(
        self, kind: Kind, operands: Sequence[int], like: Value, name: str = "", attributes: Attributes = None,
        shape: Shape | None = None, repeats: float = 1.0,
    ) -> int:  # fmt: skip
        """Appends an operator with the element type of a value, and its shape unless another is given."""
        integer = like.dtype.startswith(("int", "uint"))
        operator = ProgramOperator(
            kind, tuple(operands), like.shape if shape is None else shape, itemsize(like), name, attributes,
            integer=integer, repeats=repeats,
        )  # fmt: skip
        self.operators.append(operator)
        return len(self.operators) - 1

    def constant(self, shape: Shape, size: int) -> int:
        """Returns the index of a constant of a shape and bytes per element; it is appended if it is new."""
        if (shape, size) not in self._constants:
            self.operators.append(ProgramOperator("constant", (), shape, size))
            self._constants[shape, size] = len(self.operators) - 1
        return self._constants[shape, size]

    def is_constant(self, place: int) -> bool:
        """Returns whether an operator is a constant, or a broadcast of one."""
        operator = self.operators[place]
        return operator.kind == "constant" or (operator.kind == "broadcast" and self.is_constant(operator.operands[0]))

    def same(self, step: Step, number: int = 0) -> None:
        """Notes that a result takes no memory of its own: it only renames or reshapes the operand at that position."""
        source = step.inputs[number]
        self.roots[step.outputs[number]] = self.roots.get(source, source)

    def move(self, kind: Kind, operand: int, shape: Shape, repeats: float, attributes: Attributes = None) -> int:
        """Appends an operator that only moves an operand's elements, as a reshape or broadcast does, unless there is an
        equal one; returns its index.
        """
        operator = dataclasses.replace(
            self.operators[operand], kind=kind, operands=(operand,), shape=shape, name="", attributes=attributes,
            repeats=repeats, alias=None, gradient=False,
        )  # fmt: skip
        if operator not in self._moved:
            self.operators.append(operator)
            self._moved[operator] = len(self.operators) - 1
        return self._moved[operator]

    def reshape(self, operand: int, shape: Shape, repeats: float) -> int:
        """Returns the index of a reshape, which is appended; an operand that has the shape already is returned itself,
        and a reshape of a reshape takes the first operand.
        """
        while self.operators[operand].kind == "reshape" and self.operators[operand].shape != shape:
            (operand,) = self.operators[operand].operands
        return operand if self.operators[operand].shape == shape else self.move("reshape", operand, shape, repeats)

    def spread(self, operand: int, dims: tuple[int, ...], shape: Shape, repeats: float) -> int:
        """Returns the index of a broadcast, which is appended. Dimension i of the operand becomes dimension dims[i] of
        the result; where it has size 1, it is repeated.
        """
        own = self.operators[operand].shape
        if math.prod(own) == math.prod(shape):
            return self.reshape(operand, shape, repeats)
        kept = [d for d, size in enumerate(own) if size == shape[dims[d]]]
        operand = self.reshape(operand, tuple(own[d] for d in kept), repeats)
        return self.move("broadcast", operand, shape, repeats, Dims(tuple(dims[d] for d in kept)))


def itemsize(value: Value) -> int:
    """Returns the bytes of one element of a jaxpr value; 0 for an empty one."""
    return int(value.num_bytes // value.size) if value.size else 0
