"""A step as Alpa's pipeline computes it, in this process: layer after layer, micro-batch after micro-batch, then the
optimizer; each gets only what its markers bring in.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import alpa
import jax
import numpy as np
from alpa.pipeline_parallel import compile_executable
from alpa.util import GradFuncTransformContext, trace_jaxpr_with_micro_batch
from jax import linear_util
from jax._src.api_util import flatten_fun_nokwargs
from jax.core import ShapedArray, gensym, jaxpr_as_fun


def run_layers(
    make: Callable[[Any], Callable[..., Any]], arguments: Sequence[Any], option: Any, num_micro_batches: int = 1
) -> Any:
    """The results of a step that is cut into layers by an option; its last argument is the batch."""
    leaves, tree = jax.tree_util.tree_flatten(tuple(arguments))
    of_batch = len(jax.tree_util.tree_leaves(arguments[-1]))
    is_batch = [False] * (len(leaves) - of_batch) + [True] * of_batch
    fun, out_tree = flatten_fun_nokwargs(linear_util.wrap_init(make(alpa.value_and_grad)), tree)
    avals = [ShapedArray(np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves]
    traced: list[Any] = []
    with GradFuncTransformContext(option.transform):
        for number in (num_micro_batches, 1):
            for store in filter(None, fun.stores):
                store.reset()
            traced.append(trace_jaxpr_with_micro_batch(fun, is_batch, number, avals)[0])
    micro, whole = traced
    _, results, layers, update, bound, _, _, accumulators, *_ = compile_executable.split_and_process_layers(
        micro, whole if num_micro_batches > 1 else None, num_micro_batches, False, gensym()
    )
    half = len(layers) // 2
    assert [layer.name for layer in layers[half:]] == [f"{layer.name}_backward" for layer in reversed(layers[:half])]
    values = dict(zip(micro.jaxpr.invars, leaves, strict=True))
    sums = {var: np.zeros(var.aval.shape, var.aval.dtype) for var in accumulators}
    for number in range(num_micro_batches):
        parts = [
            np.split(np.asarray(leaf), num_micro_batches)[number] if cut else leaf
            for leaf, cut in zip(leaves, is_batch, strict=True)
        ]
        known = dict(zip(micro.jaxpr.invars, parts, strict=True)) | sums
        for layer in layers:
            made = jaxpr_as_fun(layer.closed_jaxpr())(*(known[var] for var in layer.invars))
            known.update(zip(layer.outvars, made, strict=True))
        sums = {var: known[result] for var, result in accumulators.items()}
    values = known | values
    values.update((name, known[var]) for var, name in zip(bound.invars, bound.outvars, strict=True))
    made = jaxpr_as_fun(update)(*(values[var] for var in update.jaxpr.invars))
    values.update(zip(update.jaxpr.outvars, made, strict=True))
    return jax.tree_util.tree_unflatten(out_tree(), [values[var] for var in results])


def assert_same(found: Any, expected: Any, tolerance: float = 2e-4) -> None:
    """Asserts that two trees have the same structure, dtypes and, to rounding, numbers."""
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
    for a, b in itertools.zip_longest(*map(jax.tree_util.tree_leaves, (found, expected))):
        one, other = np.asarray(a), np.asarray(b)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=tolerance, atol=tolerance / 10)
