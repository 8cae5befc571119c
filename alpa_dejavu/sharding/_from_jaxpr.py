"""Operators from the flat steps of jaxprs: what the engine would get by lowering them, without lowering.

An element-wise function of a single tensor has no operator of its own: it is cut as the tensor is.
"""

from __future__ import annotations

from collections.abc import Sequence

from alpa_dejavu.layers.features.flatten import MARKER, Step, Value
from alpa_dejavu.sharding._lookups import lookup, lookup_gradient
from alpa_dejavu.sharding._operator import Attributes, ConvolutionDims, Dims, DotDims, Kind
from alpa_dejavu.sharding._spec import Shape
from alpa_dejavu.sharding._writer import Writer, itemsize

RENAMES = frozenset({
    "copy", "copy_p", "name", "stop_gradient", "optimization_barrier", "sharding_constraint", MARKER,
})  # fmt: skip
"""Primitives whose results are their operands under other names."""
_RESHAPES = frozenset({"reshape", "squeeze", "expand_dims"})


def read_steps(writer: Writer, steps: Sequence[Step]) -> None:
    """Appends the sharding engine's operators for a flattened jaxpr to a writer's list of operators.

    Args:
        writer: keeps the list; the index of the operator of each operation's result is appended to its `of_step`, and
            the number of operators before it to its `starts`.
        steps: the jaxpr's operations, in order.
    """
    for step in steps:
        writer.starts.append(len(writer.operators))
        if step.primitive in RENAMES:
            _rename(writer, step)
        elif step.outputs:
            _read(writer, step)
        writer.of_step.append(writer.places[step.outputs[0]] if step.outputs else -1)


def _read(writer: Writer, step: Step) -> None:
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
        one = writer.add(
            "same_size", (writer.place(step.inputs[0]),), out, shape=(1, *out.shape), repeats=step.trips
        )
        place = writer.reshape(one, out.shape, step.trips)
    elif name == "stack":
        one = writer.reshape(writer.place(step.inputs[0]), (1, *out.shape[1:]), step.trips)
        place = writer.add("same_size", (one,), out, repeats=step.trips)
    elif name == "gather":
        place = lookup(writer, step)
    elif name.startswith("scatter"):
        place = lookup_gradient(writer, step)
    else:
        place = _computed(writer, step)
    writer.places[out] = place


def _computed(writer: Writer, step: Step) -> int:
    """Writes one operator for a step, with siblings for further results, and returns its place."""
    out, kind = step.outputs[0], kind_of_primitive(step)
    operands = [writer.place(value) for value in step.inputs]
    if kind in ("elementwise", "reduce") and all(map(writer.is_constant, operands)):
        return _constant(writer, out)
    if kind == "elementwise":
        operands = [_spread_out(writer, place, out, step.trips) for place in operands]
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
    name = element_name(step.primitive)
    place = writer.add(kind, operands, out, name, attributes_of_step(step, kind), repeats=step.trips)
    for other in step.outputs[1:]:
        writer.places[other] = writer.add("sibling", (place,), other, repeats=step.trips)
    return place


def _spread_out(writer: Writer, place: int, out: Value, repeats: float) -> int:
    """An operand of an element-wise operator, dimensions of size 1 spread out to those of the result."""
    shape = writer.operators[place].shape
    return place if shape in ((), out.shape) else writer.spread(place, tuple(range(len(shape))), out.shape, repeats)


def _single(writer: Writer, operands: Sequence[int], out: Value) -> int | None:
    """The only operand that is no constant, if its elements are like the result's."""
    tensors = {place for place in operands if not writer.is_constant(place)}
    if len(tensors) != 1:
        return None
    (place,) = tensors
    operator = writer.operators[place]
    return place if (operator.shape, operator.itemsize) == (out.shape, itemsize(out)) else None


def _constant(writer: Writer, out: Value) -> int:
    scalar = writer.constant((), itemsize(out))
    return writer.move("broadcast", scalar, out.shape, 1.0, Dims(())) if out.shape else scalar


def _rename(writer: Writer, step: Step) -> None:
    for number, (source, result) in enumerate(zip(step.inputs, step.outputs, strict=False)):
        place = writer.place(source)
        if step.params.get("enters") and writer.is_constant(place):
            place = writer.add("random", (), result)  # what a loop adds up from zeros may be cut in any way
        writer.places[result] = place
        writer.same(step, number)
    if "carried" in step.params:
        _carry(writer, writer.places[step.outputs[0]], writer.place(step.params["carried"]))


def _carry(writer: Writer, end: int, start: int) -> None:
    """Ties the end of a loop's trip to its start: what a trip leaves must be cut like what the next one begins with."""
    if end == start or writer.operators[start].kind == "constant":
        return
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


def element_name(primitive: str) -> str:
    """Returns HLO's name of a jax primitive, such as "multiply" for "mul", or jax's own where no rule depends on it."""
    return _NAMES.get(primitive, primitive)


def kind_of_primitive(step: Step) -> Kind:
    """Returns the kind, such as "dot" or "elementwise", by whose rules the sharding engine cuts a jaxpr's operation.

    It is "opaque" for an operation that the engine has no rules for.
    """
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
    """Whether an operand's elements go with those of a result: numbers and dimensions of size 1 with many."""
    return not shape or (len(shape) == len(out) and all(a in (1, b) for a, b in zip(shape, out, strict=True)))


def attributes_of_step(step: Step, kind: Kind) -> Attributes:
    """Returns the dimension numbers of a jaxpr's operation that its sharding strategies depend on; None if none do.

    `kind` is the sharding engine's kind of the operation, such as "dot" or "reduce".
    """
    params = step.params
    if kind == "dot":
        return _dot_dims(step)
    if kind == "convolution":
        return _convolution_dims(step)
    if kind == "window":
        return _window_dims(step)
    if kind == "transpose":
        return Dims(tuple(params["permutation"]))
    if kind == "reduce":
        return Dims(tuple(params["axes" if "axes" in params else "dimensions"]))
    if kind == "sort":
        return Dims((params.get("dimension", params.get("axis", len(step.inputs[0].shape) - 1)),))
    return None


def _dot_dims(step: Step) -> DotDims:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = step.params["dimension_numbers"]
    return DotDims(tuple(lhs_batch), tuple(rhs_batch), tuple(lhs_contract), tuple(rhs_contract))


def _convolution_dims(step: Step) -> ConvolutionDims:
    numbers = step.params["dimension_numbers"]
    lhs, rhs, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    return ConvolutionDims(
        lhs[0], lhs[1], rhs[1], rhs[0], out[0], out[1],
        step.params["feature_group_count"], step.params["batch_group_count"],
    )  # fmt: skip


def _window_dims(step: Step) -> Dims:
    """The width of the window along each dimension: 2 where it is one element wide and yet moves or pads."""
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
