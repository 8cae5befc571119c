"""Operators from the flat steps of jaxprs: what the engine would get by lowering them, without lowering.

An embedding's lookup is read as the product of a one-hot matrix that it stands for, and its gradient likewise: that is
how Alpa has flax compute it, and how it can be cut along the batch and along the vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import final

from alpa_dejavu.features._flatten import MARKER, Step, Value
from alpa_dejavu.sharding._jaxpr_attributes import (
    convolution_dims,
    dot_dims,
    element_name,
    kind_of_primitive,
    window_dims,
)
from alpa_dejavu.sharding._operator import Attributes, Dims, DotDims, Kind, Operator
from alpa_dejavu.sharding._spec import Shape

_RENAMES = frozenset({
    "copy", "copy_p", "name", "stop_gradient", "optimization_barrier", "sharding_constraint", MARKER,
})  # fmt: skip
_RESHAPES = frozenset({"reshape", "squeeze", "expand_dims"})


@final
class Reader:
    """Appends operators for steps.

    An element-wise function of a single tensor has no operator of its own: it is cut as the tensor is.

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
        """The operator whose result a value is; constants are made when they are asked for."""
        if value not in self.places:
            return self._constant(value.shape, _itemsize(value))
        return self.places[value]

    def add(
        self, kind: Kind, operands: Sequence[int], like: Value, name: str = "", attributes: Attributes = None,
        shape: Shape | None = None, repeats: float = 1.0,
    ) -> int:  # fmt: skip
        """Append an operator of a value's shape (unless another one is given) and element type."""
        integer = like.dtype.startswith(("int", "uint"))
        made = Operator(
            kind, tuple(operands), like.shape if shape is None else shape, _itemsize(like), name, attributes,
            integer=integer, repeats=repeats,
        )  # fmt: skip
        self.operators.append(made)
        return len(self.operators) - 1

    def source(self, value: Value, kind: Kind = "parameter") -> int:
        """A value from outside."""
        if value not in self.places:
            self.places[value] = self.add(kind, (), value)
        return self.places[value]

    def read(self, steps: Sequence[Step]) -> None:
        """Append what the steps compute."""
        for step in steps:
            self._step(step)
            known = bool(step.outputs) and step.outputs[0] in self.places
            self.of_step.append(self.places[step.outputs[0]] if known else -1)

    def _constant(self, shape: Shape, itemsize: int) -> int:
        if (shape, itemsize) not in self._constants:
            self.operators.append(Operator("constant", (), shape, itemsize))
            self._constants[shape, itemsize] = len(self.operators) - 1
        return self._constants[shape, itemsize]

    def _step(self, step: Step) -> None:
        name = step.primitive
        if name in _RENAMES:
            self._rename(step)
        elif name in _RESHAPES:
            self._is_same(step)
            self._put(step, self._reshape(self.place(step.inputs[0]), step.outputs[0].shape, step.trips))
        elif name == "broadcast_in_dim":
            self._put(step, self._broadcast(step))
        elif name == "slice" and not step.params:
            self._slice_of_scan(step)
        elif name == "stack":
            self._stack_of_scan(step)
        elif name == "gather":
            self._gather(step)
        elif name.startswith("scatter"):
            self._scatter(step)
        else:
            self._plain(step)

    def _put(self, step: Step, place: int) -> None:
        self.places[step.outputs[0]] = place

    def _plain(self, step: Step) -> None:
        """One operator, with siblings for further results."""
        out, name = step.outputs[0] if step.outputs else None, step.primitive
        if out is None:
            return
        kind = kind_of_primitive(step)
        operands = [self.place(value) for value in step.inputs]
        attributes: Attributes = None
        if kind == "elementwise":
            operands = [self._expanded(i, out, step.trips) for i in operands]
        if kind in ("elementwise", "reduce") and all(self.is_constant(i) for i in operands):
            self._put(step, self._spread_constant(out))
            return
        if kind == "elementwise" and (same := self._single(operands, out)) is not None:
            self._put(step, same)
            return
        if kind == "reduce" and self.operators[operands[0]].num_bytes == out.num_bytes and len(step.outputs) == 1:
            self._put(step, self._reshape(operands[0], out.shape, step.trips))
            return
        if kind in ("constant", "random", "iota"):
            operands = []
        elif kind == "dot":
            attributes = dot_dims(step)
        elif kind == "convolution":
            attributes = convolution_dims(step)
        elif kind == "window":
            attributes = window_dims(step)
            operands = [i for i in operands if self.operators[i].rank == len(out.shape)]
        elif kind == "same_size":
            operands = [i for i in operands if self.operators[i].rank == len(out.shape)]
        elif kind == "transpose":
            attributes = Dims(tuple(step.params["permutation"]))
        elif kind == "sort":
            operands = [i for i in operands if self.operators[i].rank == len(step.inputs[0].shape)]
            attributes = Dims((step.params.get("dimension", step.params.get("axis", len(out.shape) - 1)),))
        elif kind == "reduce":
            attributes = Dims(tuple(step.params["axes" if "axes" in step.params else "dimensions"]))
            operands = [*operands, self._constant((), _itemsize(out))]
        first = self.add(kind, operands, out, element_name(name), attributes, repeats=step.trips)
        self.places[out] = first
        for other in step.outputs[1:]:
            self.places[other] = self.add("sibling", (first,), other, repeats=step.trips)

    def _single(self, operands: Sequence[int], out: Value) -> int | None:
        """The only operand that is no constant, if its elements are like the result's."""
        tensors = {i for i in operands if not self.is_constant(i)}
        if len(tensors) != 1:
            return None
        (place,) = tensors
        operator = self.operators[place]
        return place if (operator.shape, operator.itemsize) == (out.shape, _itemsize(out)) else None

    def _is_same(self, step: Step) -> None:
        """The step's result takes no memory of its own."""
        source = step.inputs[0]
        self.roots[step.outputs[0]] = self.roots.get(source, source)

    def _expanded(self, place: int, out: Value, repeats: float) -> int:
        """An operand of an element-wise operator, dimensions of size 1 spread out to those of the result."""
        shape = self.operators[place].shape
        if shape in ((), out.shape):
            return place
        return self._spread_dims(place, tuple(range(len(shape))), out, repeats)

    def _spread_dims(self, operand: int, dims: tuple[int, ...], out: Value, repeats: float) -> int:
        """An operand whose dimensions go to the given places; those of size 1 are spread out."""
        shape = self.operators[operand].shape
        if math.prod(shape) == math.prod(out.shape):
            return self._reshape(operand, out.shape, repeats)
        kept = [d for d, size in enumerate(shape) if size == out.shape[dims[d]]]
        operand = self._reshape(operand, tuple(shape[d] for d in kept), repeats)
        return self._move("broadcast", operand, out.shape, repeats, Dims(tuple(dims[d] for d in kept)))

    def _spread_constant(self, out: Value) -> int:
        scalar = self._constant((), _itemsize(out))
        return scalar if not out.shape else self._move("broadcast", scalar, out.shape, 1.0, Dims(()))

    def _rename(self, step: Step) -> None:
        for source, result in zip(step.inputs, step.outputs, strict=False):
            place = self.place(source)
            if step.params.get("enters") and self.is_constant(place):
                place = self.add("random", (), result)  # what a loop adds up from zeros may be cut in any way
            self.places[result] = place
            self.roots[result] = self.roots.get(source, source)
        carried = step.params.get("carried")
        if carried is not None:
            self._carry(self.places[step.outputs[0]], self.place(carried))

    def is_constant(self, place: int) -> bool:
        """Whether a result is a constant, spread out or not."""
        operator = self.operators[place]
        return operator.kind == "constant" or (operator.kind == "broadcast" and self.is_constant(operator.operands[0]))

    def _carry(self, end: int, start: int) -> None:
        """What a trip leaves must be cut like what the next one begins with."""
        if end == start or self.operators[start].kind == "constant":
            return
        result = self.operators[end]
        self.operators.append(
            dataclasses.replace(result, kind="output", operands=(end,), name="", attributes=None, alias=start)
        )

    def _reshape(self, operand: int, shape: Shape, repeats: float) -> int:
        while self.operators[operand].kind == "reshape" and self.operators[operand].shape != shape:
            (operand,) = self.operators[operand].operands
        return operand if self.operators[operand].shape == shape else self._move("reshape", operand, shape, repeats)

    def _move(self, kind: Kind, operand: int, shape: Shape, repeats: float, attributes: Attributes = None) -> int:
        """Append an operator that only moves an operand's elements about, once."""
        source = self.operators[operand]
        made = dataclasses.replace(
            source, kind=kind, operands=(operand,), shape=shape, name="", attributes=attributes, repeats=repeats,
            alias=None, gradient=False,
        )  # fmt: skip
        if made not in self._moved:
            self.operators.append(made)
            self._moved[made] = len(self.operators) - 1
        return self._moved[made]

    def _broadcast(self, step: Step) -> int:
        out, operand = step.outputs[0], self.place(step.inputs[0])
        if out.size == step.inputs[0].size:
            self._is_same(step)
        return self._spread_dims(operand, tuple(step.params["broadcast_dimensions"]), out, step.trips)

    def _slice_of_scan(self, step: Step) -> None:
        source, out = self.place(step.inputs[0]), step.outputs[0]
        one = self.add("same_size", (source,), out, shape=(1, *out.shape), repeats=step.trips)
        self._put(step, self._reshape(one, out.shape, step.trips))

    def _stack_of_scan(self, step: Step) -> None:
        source, out = self.place(step.inputs[0]), step.outputs[0]
        one = self._reshape(source, (1, *out.shape[1:]), step.trips)
        self._put(step, self.add("same_size", (one,), out, repeats=step.trips))

    def _gather(self, step: Step) -> None:
        """A lookup of rows is a product with a one-hot matrix, the choice of an element along a dimension a sum."""
        table, indices, out = step.inputs[0], step.inputs[1], step.outputs[0]
        rows = _rows_looked_up(table.shape, indices.shape, out.shape)
        if rows is not None:
            one_hot = self._one_hot(indices, table.shape[0], out, rows, step.trips)
            operands, attributes = (one_hot, self.place(table)), DotDims((), (), (rows,), (0,))
            self._put(step, self.add("dot", operands, out, "gather", attributes, repeats=step.trips))
        elif _leading(table.shape, out.shape):
            kept = _leading(table.shape, out.shape)
            gone = tuple(range(kept, len(table.shape)))
            zero = self._constant((), _itemsize(out))
            total = self.add(
                "reduce", (self.place(table), zero), out, "gather", Dims(gone), table.shape[:kept], step.trips
            )
            self._put(step, self._spread(total, out, step.trips))
        else:
            self._put(step, self.add("opaque", (self.place(table), self.place(indices)), out, repeats=step.trips))

    def _scatter(self, step: Step) -> None:
        """The gradient of a lookup: the product of the one-hot matrix's transpose; else element by element."""
        table, indices, updates = step.inputs[:3]
        out = step.outputs[0]
        rows = _rows_looked_up(table.shape, indices.shape, updates.shape)
        kept = _leading(table.shape, updates.shape)
        if rows is not None:
            one_hot = self._one_hot(indices, table.shape[0], out, rows, step.trips)
            summed = tuple(range(rows))
            found = self.add(
                "dot", (one_hot, self.place(updates)), out, "scatter", DotDims((), (), summed, summed),
                repeats=step.trips,
            )  # fmt: skip
            if not self.is_constant(self.place(table)):
                found = self.add("elementwise", (self.place(table), found), out, "add", repeats=step.trips)
            self._put(step, found)
        elif kept:
            cut = self._reshape(self.place(updates), _without_ones(updates.shape, kept), step.trips)
            if len(self.operators[cut].shape) == kept:
                cut = self._move("broadcast", cut, out.shape, step.trips, Dims(tuple(range(kept))))
                operands = [cut] if self.is_constant(self.place(table)) else [self.place(table), cut]
                self._put(step, self.add("elementwise", operands, out, "add", repeats=step.trips))
                return
            self._put(step, self.add("opaque", (self.place(table), cut), out, repeats=step.trips))
        else:
            operands = [self.place(value) for value in (table, indices, updates)]
            self._put(step, self.add("opaque", operands, out, repeats=step.trips))

    def _one_hot(self, indices: Value, num_rows: int, like: Value, rank: int, repeats: float) -> int:
        """The indices, spread out along the rows of the table."""
        shape = indices.shape[:rank]
        source = self._reshape(self.place(indices), shape, repeats)
        return self.add(
            "broadcast", (source,), like, "one-hot", Dims(tuple(range(rank))), (*shape, num_rows), repeats
        )

    def _spread(self, place: int, like: Value, repeats: float) -> int:
        shape = self.operators[place].shape
        if len(shape) == len(like.shape):
            return place
        if _without_ones(like.shape, len(shape)) == shape:
            return self._reshape(place, like.shape, repeats)
        return self._move("broadcast", place, like.shape, repeats, Dims(tuple(range(len(shape)))))


def _itemsize(value: Value) -> int:
    return int(value.num_bytes // value.size) if value.size else 0


def _rows_looked_up(table: Shape, indices: Shape, rows: Shape) -> int | None:
    """How many dimensions of indices there are, if whole rows of a table are looked up one by one; else None."""
    rank = len(indices) - 1
    looked_up = indices[-1:] == (1,) and len(table) > 1 and rows == (*indices[:-1], *table[1:])
    return rank if rank >= 1 and looked_up else None


def _leading(table: Shape, rows: Shape) -> int:
    """How many leading dimensions two shapes have in common, less than all of the first."""
    common = 0
    while common < min(len(table) - 1, len(rows)) and table[common] == rows[common]:
        common += 1
    return common


def _without_ones(shape: Shape, kept: int) -> Shape:
    """A shape without the dimensions of size 1 behind the first so many."""
    return (*shape[:kept], *(size for size in shape[kept:] if size != 1))
