"""A step over micro-batches, put together by plain jax as Alpa does it: the sum over them by their number."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten, tree_leaves, tree_map, tree_unflatten

from alpa_stock_jax._micro_batch_step import read_step
from alpa_stock_jax._recorded_step import differentiate, record, recording

__all__ = ["accumulated"]


class _Seen(Exception):
    """The gradient of one micro-batch is known."""


def accumulated(make, arguments, batch, number, **options):
    """What a step gives that is put together from micro-batches; None where it is right as it is.

    Args:
        make: takes `value_and_grad` and gives the step.
        arguments: the step's.
        batch: the position of the batch among them.
        number: of micro-batches.
        options: of `read_step`.
    """
    flat, tree = tree_flatten(arguments)
    is_batch = tree_leaves([
        tree_map(lambda leaf, n=n: n == batch and np.ndim(leaf) > 0, given) for n, given in enumerate(arguments)
    ])  # fmt: skip
    step, trees = make(differentiate(jax.value_and_grad, with_value=True)), []

    def flat_step(*leaves):
        results, tree_of_results = tree_flatten(step(*tree_unflatten(tree, leaves)))
        trees.append(tree_of_results)
        return results

    def traced(parts):
        given = [leaf[: len(leaf) // parts] if cut else leaf for leaf, cut in zip(flat, is_batch, strict=True)]
        with recording(), jax.disable_jit():
            return record(jax.make_jaxpr(flat_step)(*given))

    micro, whole = traced(number), traced(1)
    seen = []

    def gradient(fun, **named):
        def call(*leaves):
            if len(seen) == number:
                return tree_map(_mean, *seen)
            seen.append(jax.value_and_grad(fun, **named)(*leaves))
            raise _Seen

        return call

    def part(values, cuts, n):
        size = [len(value) // number if cut else 0 for value, cut in zip(values, cuts, strict=True)]
        return [v[n * s : (n + 1) * s] if s else v for v, s in zip(values, size, strict=True)]

    rewritten = read_step(micro, whole, is_batch, number, (gradient, gradient), **options)
    if rewritten is None:
        return None
    more = rewritten.prepare(*flat)
    for n in range(number):
        with contextlib.suppress(_Seen):
            rewritten.call(*part(flat, is_batch, n), *part(more, rewritten.extra_batch, n))
    return tree_unflatten(trees[0], rewritten.call(*part(flat, is_batch, 0), *part(more, rewritten.extra_batch, 0)))


def _mean(*values):
    total = sum(jnp.asarray(value) for value in values)
    return total if total.dtype.kind in "iu" else total / len(values)
