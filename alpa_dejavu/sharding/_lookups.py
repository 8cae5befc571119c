"""Gathers and scatters of a jaxpr as operators that can be cut.

An embedding's lookup is read as the product of a one-hot matrix that it stands for, and its gradient likewise: that is
how Alpa has flax compute it, and how it can be cut along the batch and along the vocabulary. The choice of an element
along a dimension, as a loss makes it, is read as a sum along that dimension.
"""

from __future__ import annotations

from alpa_dejavu.layers.features.flatten import Step, Value
from alpa_dejavu.sharding._operator import Dims, DotDims
from alpa_dejavu.sharding._spec import Shape
from alpa_dejavu.sharding._writer import Writer, itemsize


def lookup(writer: Writer, step: Step) -> int:
    """Appends the sharding engine's operators for a gather of a jaxpr, and returns the index of its result's operator.

    A lookup of whole rows of a table, such as an embedding's, is written as the product of a one-hot matrix and the
    table; the choice of an element along trailing dimensions as a sum along them; any other gather can't be cut.
    """
    table, indices, out = step.inputs[0], step.inputs[1], step.outputs[0]
    rows = _rows_looked_up(table.shape, indices.shape, out.shape)
    if rows is not None:
        operands = _one_hot(writer, indices, table.shape[0], out, rows, step.trips), writer.place(table)
        return writer.add("dot", operands, out, "gather", DotDims((), (), (rows,), (0,)), repeats=step.trips)
    kept = _leading(table.shape, out.shape)
    if kept:
        operands = writer.place(table), writer.constant((), itemsize(out))
        gone = Dims(tuple(range(kept, len(table.shape))))
        total = writer.add("reduce", operands, out, "gather", gone, table.shape[:kept], step.trips)
        return _spread(writer, total, out, step.trips)
    return writer.add("opaque", (writer.place(table), writer.place(indices)), out, repeats=step.trips)


def lookup_gradient(writer: Writer, step: Step) -> int:
    """Appends the sharding engine's operators for a scatter of a jaxpr, and returns the index of its result's operator.

    The gradient of a lookup of whole rows, such as an embedding's, is written as the product of a one-hot matrix and
    the rows' gradients; that of the choice of single elements as a broadcast; any other scatter can't be cut.
    """
    (table, indices, updates), out = step.inputs[:3], step.outputs[0]
    rows = _rows_looked_up(table.shape, indices.shape, updates.shape)
    kept = _leading(table.shape, updates.shape)
    if rows is not None:
        operands = _one_hot(writer, indices, table.shape[0], out, rows, step.trips), writer.place(updates)
        summed = tuple(range(rows))
        total = writer.add("dot", operands, out, "scatter", DotDims((), (), summed, summed), repeats=step.trips)
        return _added(writer, writer.place(table), total, out, step.trips)
    chosen = _without_ones(updates.shape, kept)
    if kept and len(chosen) == kept:
        total = writer.spread(
            writer.reshape(writer.place(updates), chosen, step.trips), tuple(range(kept)), out.shape, step.trips
        )
        return _added(writer, writer.place(table), total, out, step.trips)
    everything = [writer.place(value) for value in (table, indices, updates)]
    return writer.add("opaque", everything, out, repeats=step.trips)


def _added(writer: Writer, place: int, update: int, out: Value, repeats: float) -> int:
    """Returns the operator of a sum; what is added to a constant, which stands for zeros, is the sum itself."""
    if writer.is_constant(place):
        return update
    return writer.add("elementwise", (place, update), out, "add", repeats=repeats)


def _one_hot(writer: Writer, indices: Value, num_rows: int, like: Value, rank: int, repeats: float) -> int:
    """The indices, spread out along the rows of the table."""
    shape = indices.shape[:rank]
    source = writer.reshape(writer.place(indices), shape, repeats)
    return writer.add("broadcast", (source,), like, "one-hot", Dims(tuple(range(rank))), (*shape, num_rows), repeats)


def _spread(writer: Writer, place: int, like: Value, repeats: float) -> int:
    shape = writer.operators[place].shape
    return writer.spread(place, tuple(range(len(shape))), like.shape, repeats)


def _rows_looked_up(table: Shape, indices: Shape, rows: Shape) -> int | None:
    """Returns the number of dimensions of indices if whole rows of a table are looked up one by one; else None."""
    rank = len(indices) - 1
    looked_up = indices[-1:] == (1,) and len(table) > 1 and rows == (*indices[:-1], *table[1:])
    return rank if rank >= 1 and looked_up else None


def _leading(table: Shape, rows: Shape) -> int:
    """Returns how many leading dimensions two shapes have in common, less than all of the first."""
    common = 0
    while common < min(len(table) - 1, len(rows)) and table[common] == rows[common]:
        common += 1
    return common


def _without_ones(shape: Shape, kept: int) -> Shape:
    """A shape without the dimensions of size 1 behind the first so many."""
    return (*shape[:kept], *(size for size in shape[kept:] if size != 1))
