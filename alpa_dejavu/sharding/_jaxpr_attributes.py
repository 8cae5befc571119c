"""The kind of operator that a step of a jaxpr is, and its dimensions."""

from __future__ import annotations

from alpa_dejavu.layers.features.flatten import Step
from alpa_dejavu.sharding._operator import Attributes, ConvolutionDims, Dims, DotDims, Kind
from alpa_dejavu.sharding._spec import Shape

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
    """HLO's name of an element-wise operator, by which the engine's rules go; jax's own where they don't matter."""
    return _NAMES.get(primitive, primitive)


def kind_of_primitive(step: Step) -> Kind:
    """The kind of a step; "opaque" for what the engine does not know."""
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
    """The dimensions that the strategies of a step's kind need."""
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
