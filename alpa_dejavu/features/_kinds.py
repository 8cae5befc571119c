"""What kind each of jax's primitives is, and how many operations it takes: XLA's way of counting.

References:
    XLA's `HloCostAnalysis`: two operations for a multiply-add, one for each element of an element-wise result, and
    transcendental functions counted apart.
"""

from __future__ import annotations

from alpa_dejavu.features._flatten import MARKER, Step
from alpa_dejavu.features._products import convolution_flop, dot_flop

ALIASES = frozenset({
    MARKER, "reshape", "squeeze", "expand_dims", "transpose", "copy", "copy_p", "stop_gradient", "optimization_barrier",
    "name", "sharding_constraint", "bitcast_convert_type", "random_wrap", "random_unwrap",
})  # fmt: skip
"""What only renames a value or says how it lies in memory: products take their operands in any order of dimensions."""

_LAYOUT = ALIASES | {
    "broadcast_in_dim", "iota", "slice", "stack", "concatenate", "pad", "rev", "dynamic_slice", "convert_element_type",
}  # fmt: skip
_TRANSCENDENTAL = {
    "exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "sin", "cos", "tan", "sinh", "cosh", "asin", "acos",
    "atan", "asinh", "acosh", "atanh", "atan2", "erf", "erfc", "erf_inv", "pow", "sqrt", "rsqrt", "cbrt", "lgamma",
    "digamma", "igamma", "igammac",
}  # fmt: skip
_RANDOM = {"random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform", "random_fold_in", "random_seed"}
_OPAQUE = {"fft", "cholesky", "triangular_solve", "eigh", "svd", "qr", "lu", "custom_call", "householder_product"}


def kind_of(step: Step) -> str:
    """One of `alpa_dejavu.problem._operators.KINDS`."""
    name = step.primitive
    if name == "dot_general":
        return "dot"
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


def flop_of(step: Step, kind: str) -> tuple[float, float]:
    """Operations and transcendental functions of one run of a step."""
    size = float(step.outputs[0].size) if step.outputs else 0.0
    if kind == "dot":
        return dot_flop(step.params, step.inputs[0].shape, size), 0.0
    if kind == "conv":
        image, kernel = step.inputs[0].shape, step.inputs[1].shape
        return convolution_flop(step.params, image, kernel, step.outputs[0].shape), 0.0
    if kind in ("reduce", "sort"):
        return float(step.inputs[0].size), 0.0
    if kind == "scatter":
        return float(step.inputs[-1].size), 0.0
    if kind == "elementwise":
        return (0.0, size) if step.primitive in _TRANSCENDENTAL else (size, 0.0)
    return (8.0 * size if kind == "random" else 0.0), 0.0
