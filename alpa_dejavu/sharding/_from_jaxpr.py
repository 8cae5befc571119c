"""Operators from the flat steps of jaxprs: what the engine would get by lowering them, without lowering.

An element-wise function of a single tensor has no operator of its own: it is cut as the tensor is. An embedding's
lookup is read as the product of a one-hot matrix that it stands for, and its gradient likewise: that is how Alpa has
flax compute it, and how it can be cut along the batch and along the vocabulary. The choice of an element along a
dimension, as a loss makes it, is read as a sum along that dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

from alpa_dejavu.layers.features.flatten import MARKER, Step, Value
from alpa_dejavu.sharding._operator import Attributes, ConvolutionDims, Dims, DotDims, Kind
from alpa_dejavu.sharding._spec import Shape
from alpa_dejavu.sharding._writer import OperatorWriter, itemsize

RENAMES = frozenset({
    "copy", "copy_p", "name", "stop_gradient", "optimization_barrier", "sharding_constraint", MARKER,
})  # fmt: skip
"""Primitives whose results are their operands under other names."""
_RESHAPES = frozenset({"reshape", "squeeze", "expand_dims"})


def read_steps(writer: OperatorWriter, steps: Sequence[Step]) -> None:
    """Appends the engine's operators for a flattened jaxpr's operations to a writer's list of operators.

    The index of the operator of each operation's result is appended to the writer's `of_step`, and the number of
    operators before it to its `starts`.
    """
    for step in steps:
        writer.starts.append(len(writer.operators))
        if step.primitive in RENAMES:
            _rename(writer, step)
        elif step.outputs:
            _read(writer, step)
        writer.of_step.append(writer.places[step.outputs[0]] if step.outputs else -1)


def _read(writer: OperatorWriter, step: Step) -> None:
    name, out = step.primitive, step.outputs[0]
    if name in _RESHAPES:
        writer.same(step)
        place = writer.reshape(writer.place(step.inputs[0]), out.shape, step.trips)
    elif name == "broadcast_in_dim":
        if out.size == step.inputs[0].size:
            writer.same(step)
        dims = tuple(step.params["broadcast_dimensions"])
        place = writer.spread(writer.place(step.inputs[0]), dims, out.shape, step.trips)
    elif name == "slice" and not step.params:
        row = writer.add("same_size", (writer.place(step.inputs[0]),), out, shape=(1, *out.shape), repeats=step.trips)
        place = writer.reshape(row, out.shape, step.trips)
    elif name == "stack":
        row = writer.reshape(writer.place(step.inputs[0]), (1, *out.shape[1:]), step.trips)
        place = writer.add("same_size", (row,), out, repeats=step.trips)
    elif name == "gather":
        place = lookup(writer, step)
    elif name.startswith("scatter"):
        place = lookup_gradient(writer, step)
    else:
        place = _computed(writer, step)
    writer.places[out] = place


def _computed(writer: OperatorWriter, step: Step) -> int:
    """Writes one operator for a step, with siblings for further results, and returns its place."""
    out, kind = step.outputs[0], kind_of_primitive(step)
    operands = [writer.place(value) for value in step.inputs]
    if kind in ("elementwise", "reduce") and all(map(writer.is_constant, operands)):
        scalar = writer.constant((), itemsize(out))
        return writer.move("broadcast", scalar, out.shape, 1.0, Dims(())) if out.shape else scalar
    if kind == "elementwise":
        # Dimensions of size 1 are spread out to those of the result.
        shapes = [writer.operators[place].shape for place in operands]
        operands = [
            place if shape in ((), out.shape) else writer.spread(place, tuple(range(len(shape))), out.shape, step.trips)
            for place, shape in zip(operands, shapes, strict=True)
        ]
        single = _single(writer, operands, out)
        if single is not None:
            return single
    elif kind == "reduce":
        if step.inputs[0].size == out.size and len(step.outputs) == 1:
            return writer.reshape(operands[0], out.shape, step.trips)
        operands.append(writer.constant((), itemsize(out)))
    elif kind in ("constant", "random", "iota"):
        operands = []
    elif kind in ("window", "same_size", "sort"):
        rank = len(step.inputs[0].shape)
        operands = [place for place in operands if writer.operators[place].rank == rank]
    name = _NAMES.get(step.primitive, step.primitive)
    place = writer.add(kind, operands, out, name, attributes_of_step(step, kind), repeats=step.trips)
    for other in step.outputs[1:]:
        writer.places[other] = writer.add("sibling", (place,), other, repeats=step.trips)
    return place


def _single(writer: OperatorWriter, operands: Sequence[int], out: Value) -> int | None:
    """Returns the only operand that is no constant, if its elements are like the result's."""
    tensors = {place for place in operands if not writer.is_constant(place)}
    if len(tensors) != 1:
        return None
    (place,) = tensors
    operator = writer.operators[place]
    return place if (operator.shape, operator.itemsize) == (out.shape, itemsize(out)) else None


def _rename(writer: OperatorWriter, step: Step) -> None:
    for number, (source, result) in enumerate(zip(step.inputs, step.outputs, strict=False)):
        place = writer.place(source)
        if step.params.get("enters") and writer.is_constant(place):
            place = writer.add("random", (), result)  # what a loop adds up from zeros may be cut in any way
        writer.places[result] = place
        writer.same(step, number)
    if "carried" in step.params:
        # What a loop's trip leaves must be cut like what the next one begins with.
        end, start = writer.places[step.outputs[0]], writer.place(step.params["carried"])
        if end != start and writer.operators[start].kind != "constant":
            writer.operators.append(writer.operators[end].as_output(end, start))


_KINDS: dict[str, Kind] = {
    "iota": "iota", "transpose": "transpose", "slice": "same_size", "pad": "same_size", "concatenate": "same_size",
    "dynamic_slice": "same_size", "dynamic_update_slice": "same_size", "rev": "window", "sort": "sort",
    "top_k": "sort", "approx_top_k": "sort", "dot_general": "dot", "conv_general_dilated": "convolution",
    "argmax": "reduce", "argmin": "reduce", "random_bits": "random", "rng_bit_generator": "random",
    "rng_uniform": "random", "random_wrap": "constant", "random_unwrap": "constant", "random_seed": "constant",
    "random_fold_in": "constant", "random_split": "constant", "threefry2x32": "random",
}  # fmt: skip
_NAMES = {
    "add_any": "add", "select_n": "select", "convert_element_type": "convert", "mul": "multiply", "sub": "subtract",
    "div": "divide", "eq": "compare", "ne": "compare", "lt": "compare", "le": "compare", "gt": "compare",
    "ge": "compare",
}  # fmt: skip


def kind_of_primitive(step: Step) -> Kind:
    """Returns the kind by whose rules the engine cuts a jaxpr's operation; "opaque" if it has none."""
    name, out = step.primitive, step.outputs[0]
    if name in _KINDS:
        return _KINDS[name]
    if name.startswith(("reduce_window", "select_and_")):
        return "window"
    if name.startswith("reduce_") and name != "reduce_precision":
        return "reduce"
    if name.startswith("cum"):
        return "sort"
    shapes = [value.shape for value in step.inputs]
    return "elementwise" if shapes and all(_spreads(shape, out.shape) for shape in shapes) else "opaque"


def _spreads(shape: Shape, out: Shape) -> bool:
    """Returns whether an operand's elements go with those of a result: numbers and dimensions of size 1 with many."""
    return not shape or (len(shape) == len(out) and all(a in (1, b) for a, b in zip(shape, out, strict=True)))


def attributes_of_step(step: Step, kind: Kind) -> Attributes:
    """Returns the dimension numbers of a jaxpr's operation that its strategies depend on; None if none do."""
    params = step.params
    if kind == "dot":
        (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = params["dimension_numbers"]
        return DotDims(tuple(lhs_batch), tuple(rhs_batch), tuple(lhs_contract), tuple(rhs_contract))
    if kind == "convolution":
        numbers = params["dimension_numbers"]
        lhs, rhs, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
        groups = params["feature_group_count"], params["batch_group_count"]
        return ConvolutionDims(lhs[0], lhs[1], rhs[1], rhs[0], out[0], out[1], *groups)
    if kind == "window":
        return _window_dims(step)
    if kind == "transpose":
        return Dims(tuple(params["permutation"]))
    if kind == "reduce":
        return Dims(tuple(params["axes" if "axes" in params else "dimensions"]))
    if kind == "sort":
        return Dims((params.get("dimension", params.get("axis", len(step.inputs[0].shape) - 1)),))
    return None


def _window_dims(step: Step) -> Dims:
    """Returns the width of the window along each dimension: 2 where it is one element wide and yet moves or pads."""
    rank = len(step.outputs[0].shape)
    if step.primitive == "rev":
        return Dims(tuple(2 if d in step.params["dimensions"] else 1 for d in range(rank)))
    sizes = step.params.get("window_dimensions") or (2,) * rank
    strides = step.params.get("window_strides") or (1,) * rank
    padding = step.params.get("padding") or ((0, 0),) * rank
    return Dims(
        tuple(
            int(size) if size != 1 or (stride == 1 and tuple(pads) == (0, 0)) else 2
            for size, stride, pads in zip(sizes, strides, padding, strict=True)
        )
    )


def lookup(writer: OperatorWriter, step: Step) -> int:
    """Appends the operators for a gather, and returns the index of its result's operator.

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
        return writer.spread(total, tuple(range(kept)), out.shape, step.trips)
    return writer.add("opaque", (writer.place(table), writer.place(indices)), out, repeats=step.trips)


def lookup_gradient(writer: OperatorWriter, step: Step) -> int:
    """Appends the operators for a scatter, and returns the index of its result's operator.

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
    chosen = (*updates.shape[:kept], *(size for size in updates.shape[kept:] if size != 1))
    if kept and len(chosen) == kept:
        total = writer.spread(
            writer.reshape(writer.place(updates), chosen, step.trips), tuple(range(kept)), out.shape, step.trips
        )
        return _added(writer, writer.place(table), total, out, step.trips)
    everything = [writer.place(value) for value in (table, indices, updates)]
    return writer.add("opaque", everything, out, repeats=step.trips)


def _added(writer: OperatorWriter, place: int, update: int, out: Value, repeats: float) -> int:
    """Returns the operator of a sum; what is added to a constant, which stands for zeros, is the sum itself."""
    if writer.is_constant(place):
        return update
    return writer.add("elementwise", (place, update), out, "add", repeats=repeats)


def _one_hot(writer: OperatorWriter, indices: Value, num_rows: int, like: Value, rank: int, repeats: float) -> int:
    """Returns the operator of indices, spread out along the rows of the table."""
    shape = indices.shape[:rank]
    source = writer.reshape(writer.place(indices), shape, repeats)
    return writer.add("broadcast", (source,), like, "one-hot", Dims(tuple(range(rank))), (*shape, num_rows), repeats)


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
