"""The kind of each of jax's primitives, and the number of its operations: XLA's way of counting.

References:
    XLA's `HloCostAnalysis`: two operations for a multiply-add, one for each element of an element-wise result, and
    transcendental functions counted apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers._jaxprs import shape_of
from alpa_dejavu.layers.features.flatten import ATTENTION, MARKER, Step, product_flop

ALIASES = frozenset({
    MARKER, "reshape", "squeeze", "expand_dims", "transpose", "copy", "copy_p", "stop_gradient", "optimization_barrier",
    "name", "sharding_constraint", "bitcast_convert_type", "random_wrap", "random_unwrap",
})  # fmt: skip
"""Primitives that only rename a value or say how it lies in memory: products take dimensions in any order."""

_LAYOUT = ALIASES | {
    "broadcast_in_dim", "iota", "slice", "stack", "concatenate", "pad", "rev", "dynamic_slice", "convert_element_type",
}  # fmt: skip
_TRANSCENDENTAL = {
    "exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "sin", "cos", "tan", "sinh", "cosh", "asin", "acos",
    "atan", "asinh", "acosh", "atanh", "atan2", "erf", "erfc", "erf_inv", "pow", "sqrt", "rsqrt", "cbrt", "lgamma",
    "digamma", "igamma", "igammac",
}  # fmt: skip
_EXPANDED = {"logistic": (3.0, 1.0), "erf_inv": (37.0, 2.0)}
"""Operations and transcendental functions of what XLA is given as several operations."""
_ARG_OPERATIONS = 9.0
_THREEFRY_OPERATIONS = 58.5
"""For each number: 20 rounds of five operations and their key schedule make two of them. XLA counts the loop's body
once; this is its count of the unrolled rounds."""
_PARTITIONABLE_OPERATIONS = 121.0
"""The same where each number has a counter of its own, as by default since jax 0.5: two of them make one."""
_RANDOM = {"random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform", "random_fold_in", "random_seed"}
_OPAQUE = {"fft", "cholesky", "triangular_solve", "eigh", "svd", "qr", "lu", "custom_call", "householder_product"}


SAME = frozenset({"convert_element_type", "copy", "copy_p", "stop_gradient", "name"})
"""Primitives whose results have the numbers of their operand, each where it was."""


def kind_of(step: Step) -> str:
    """Returns the kind of an operation of a jaxpr, by which its time is predicted: "dot", "attention", "conv",
    "elementwise", "reduce", "gather", "scatter", "sort", "random", "layout" or "other".
    """
    name = step.primitive
    if name == "dot_general":
        return "dot"
    if name == ATTENTION:
        return "attention"
    if name == "conv_general_dilated":
        return "conv"
    if name.startswith(("reduce", "arg", "cum")) and name != "reduce_precision":
        return "reduce"
    if name.startswith(("scatter", "select_and_scatter", "dynamic_update_slice")):
        return "scatter"
    if name.startswith(("gather", "select_and_gather")):
        return "gather"
    if name in ("sort", "top_k", "approx_top_k"):
        return "sort"
    if name in _RANDOM or name.startswith("rng_"):
        return "random"
    if name in _LAYOUT:
        return "layout"
    return "other" if name in _OPAQUE or not step.outputs else "elementwise"


def is_elementwise(equation: core.JaxprEqn) -> bool:
    """Returns whether an equation makes each element of its only result from the same elements of its operands.

    Numbers, and dimensions of size 1, go with many elements.
    """
    if len(equation.outvars) != 1 or equation.effects or next(core.jaxprs_in_params(equation.params), None) is not None:
        return False
    shape = shape_of(equation.outvars[0])
    name = equation.primitive.name
    step = Step(name, equation.params, (), tuple(equation.outvars), 1.0)
    if name not in (*SAME, "bitcast_convert_type") and kind_of(step) != "elementwise":
        return False
    return all(_spreads(shape_of(atom), shape) for atom in equation.invars)


def _spreads(shape: Sequence[int], wide: Sequence[int]) -> bool:
    return not shape or (len(shape) == len(wide) and all(a in (1, b) for a, b in zip(shape, wide, strict=True)))


def flop_of(step: Step, kind: str) -> tuple[float, float]:
    """Returns how many arithmetic operations, and how many transcendental functions, one run of an operation of a jaxpr
    takes, counted as XLA does; `kind` is its kind, as `kind_of` tells it.
    """
    size = float(step.outputs[0].size) if step.outputs else 0.0
    products = product_flop(step.primitive, step.params, step.inputs, step.outputs)
    if products is not None:
        return products, 0.0
    if kind == "attention":
        return step.params["kernel"].flop, step.params["kernel"].exponentials
    if kind == "reduce":
        return _reduction_flop(step, size), 0.0
    if step.primitive == "sort":
        return step.inputs[0].size * math.ceil(math.log2(max(step.inputs[0].size, 1))), 0.0
    if kind == "scatter":
        return _scatter_flop(step), 0.0
    if kind == "elementwise":
        flop, transcendental = _per_element(step)
        return flop * size, transcendental * size
    if step.primitive == "convert_element_type":
        return size, 0.0
    if kind != "random":
        return 0.0, 0.0
    apart = step.primitive == "random_bits" and jax.config.jax_threefry_partitionable
    return (_PARTITIONABLE_OPERATIONS if apart else _THREEFRY_OPERATIONS) * sum(v.size for v in step.outputs), 0.0


def _per_element(step: Step) -> tuple[float, float]:
    """Returns the operations and transcendental functions for each element of a result."""
    if step.primitive in _EXPANDED:
        return _EXPANDED[step.primitive]
    if step.primitive in _TRANSCENDENTAL:
        return 0.0, 1.0
    if step.primitive == "integer_pow":
        power = abs(step.params["y"])
        products = max(power.bit_length() + power.bit_count() - 2, 0)
        return float(products + (step.params["y"] < 0)), 0.0
    return 1.0, 0.0


def _reduction_flop(step: Step, size: float) -> float:
    """An operation for each element but the first of each result; a window is reduced anew for each result."""
    source = step.inputs[0]
    if "window_dimensions" in step.params:
        return size * max(math.prod(step.params["window_dimensions"]) - 1.0, 0.0)
    if step.primitive.startswith("arg"):
        return _ARG_OPERATIONS * (source.size - size)
    if step.primitive.startswith("cum"):
        return source.size * (source.shape[step.params["axis"]] - 1.0)
    return source.size - size


def _scatter_flop(step: Step) -> float:
    """An operation for each element that is added; to find where it is added, one for each other of its window's."""
    if step.primitive == "dynamic_update_slice":
        return 0.0
    if "window_dimensions" in step.params:
        return float(step.inputs[0].size * math.prod(step.params["window_dimensions"]))
    return float(step.inputs[-1].size) if step.primitive != "scatter" else 0.0
