"""Sums over replicas' gradients that survive values that aren't finite.

Gradients are a pytree whose leaves have the replicas as their first dimension, [N, ...]. Shapes depend on N alone, so
that all of it runs under `jit`, in shards, and where some replicas aren't finite (valid [N] says which are).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PyTree

    Gradient: TypeAlias = PyTree[Float[Array, "..."]]
    Gradients: TypeAlias = PyTree[Float[Array, "N ..."]]
    Rows: TypeAlias = Float[Array, "N ..."]
    Which: TypeAlias = Bool[Array, " N"]
    Each: TypeAlias = Float[Array, " N"]


def count(gradients: Gradients) -> int:
    """Returns the number of replicas; raises ValueError where leaves differ in it, or there are none."""
    shapes = [jnp.shape(x) for x in jax.tree.leaves(gradients)]
    result = {shape[0] if shape else None for shape in shapes}
    if len(result) != 1 or None in result:
        raise ValueError(f"gradients has leaves of shapes {shapes[:4]}, but must be of as many replicas each; stack "
                         "the replicas along the first dimension")  # fmt: skip
    return int(result.pop())  # type: ignore[arg-type]


def column(values: Each, like: Rows) -> Rows:
    """Returns one value for each replica in a shape that multiplies a leaf [N, ...]."""
    return values.reshape((-1,) + (1,) * (like.ndim - 1))


def finite_rows(gradients: Gradients) -> Which:
    """Returns whether all values of each replica are finite."""
    by_leaf = [jnp.all(jnp.isfinite(x), axis=tuple(range(1, x.ndim))) for x in jax.tree.leaves(gradients)]
    return functools.reduce(jnp.logical_and, by_leaf)


def cleared(gradients: Gradients, valid: Which) -> Gradients:
    """Returns gradients with zeros for the replicas that aren't valid."""
    return jax.tree.map(lambda x: jnp.where(column(valid, x), x, 0), gradients)


def weighted(gradients: Gradients, weights: Each) -> Gradient:
    """Returns the sum of the replicas' gradients by weights [N]; what weighs nothing isn't looked at."""

    def weighted_sum(x: Rows) -> Float[Array, " ..."]:
        w = column(weights.astype(x.dtype), x)
        return jnp.sum(jnp.where(w != 0, x, 0) * w, axis=0)

    return jax.tree.map(weighted_sum, gradients)


def mean_of(gradients: Gradients, chosen: Which) -> Gradient:
    """Returns the mean of the chosen replicas [N], or zeros where none is."""
    return weighted(gradients, chosen / jnp.maximum(jnp.sum(chosen), 1))


def norms(gradients: Gradients) -> Each:
    """Returns the Euclidean norm of each replica's gradient; squares neither overflow nor vanish."""
    leaves = [wide(x) for x in jax.tree.leaves(gradients)]
    most = functools.reduce(jnp.maximum, map(_largest, leaves))
    unit = _one_if_none(most)
    squares = [jnp.sum(jnp.square(x / column(unit, x)), axis=tuple(range(1, x.ndim))) for x in leaves]
    return unit * jnp.sqrt(functools.reduce(operator.add, squares))


def shrunk(gradients: Gradients, valid: Which) -> Gradients:
    """Returns gradients over the largest absolute value, zeros where not valid: sums and distances don't overflow."""
    clean = jax.tree.map(wide, cleared(gradients, valid))
    unit = _one_if_none(_for_each_row(jnp.max, functools.reduce(jnp.maximum, map(_largest, jax.tree.leaves(clean)))))
    return jax.tree.map(lambda x: x / column(unit, x), clean)


def distances(gradients: Gradients, centre: Gradient, valid: Which) -> Each:
    """Returns the distance of each replica to a centre without the dimension of replicas; infinite if not valid."""
    moved = jax.tree.map(lambda x, c: wide(x) - wide(c), cleared(gradients, valid), centre)
    result = norms(moved)
    return jnp.where(valid & jnp.isfinite(result), result, jnp.inf)


def products_around(gradients: Gradients, centre: Gradient, valid: Which) -> tuple[Float[Array, "N N"], Each]:
    """Returns the inner products of all pairs' differences from a centre, shape [N, N], 0 where one isn't valid; and N
    times the unit of the differences, shape [N]: products are over its square, so that those of ordinary replicas
    neither overflow nor vanish.
    """
    clean = cleared(gradients, valid)
    moved = [cleared(wide(x) - wide(c), valid)
             for x, c in zip(*map(jax.tree.leaves, (clean, centre)), strict=True)]  # fmt: skip
    most = functools.reduce(jnp.maximum, map(_largest, moved))
    unit = _one_if_none(middle(most, most > 0))
    return functools.reduce(operator.add, [_products(x / column(unit, x)) for x in moved]), unit


def wide(x: Float[Array, " ..."]) -> Float[Array, " ..."]:
    """Returns values in single precision at least."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _largest(x: Rows) -> Each:
    return jnp.max(jnp.abs(x), axis=tuple(range(1, x.ndim)), initial=0)


def _one_if_none(units: Each) -> Each:
    """Units that can be divided by: 1 for those of zeros, and of what isn't finite."""
    return jnp.where((units > 0) & jnp.isfinite(units), units, 1)


def _products(x: Rows) -> Float[Array, "N N"]:
    # Row by row: a matrix product would be gathered on each device, as it isn't cut along what it sums over.
    return jnp.stack([jnp.sum(x * row, axis=tuple(range(1, x.ndim))) for row in x])


def diagonal(values: Float[Array, "N N"]) -> Each:
    """Returns the diagonal of values [N, N]."""
    return jnp.sum(jnp.where(np.eye(len(values), dtype=bool), values, 0), axis=1)


def squared_distances(gradients: Gradients, valid: Which) -> Float[Array, "N N"]:
    """Returns the squared distances of pairs in some unit, shape [N, N]; infinite where one isn't valid."""
    # From their median: else a huge wrong gradient, or the part that all share, leaves no digits to the differences.
    products, _ = products_around(gradients, median_of(gradients, valid), valid)
    squares = diagonal(products)
    result = squares[:, None] + squares[None, :] - 2 * products
    # What overflows is far away, too.
    far = ~(valid[:, None] & valid[None, :]) | ~jnp.isfinite(result)
    result = jnp.where(far, jnp.inf, jnp.maximum(result, 0))
    return jnp.where(np.eye(len(valid), dtype=bool), 0, result)


def ranks(values: Float[Array, "... N"]) -> Int[Array, "... N"]:
    """Returns each value's place among the last dimension's in ascending order, from 0; equal ones in their order."""
    # By comparisons: sorts and scatters of N numbers are no work, but programs of several devices split them badly.
    value, other = values[..., :, None], values[..., None, :]
    before = np.tri(values.shape[-1], k=-1, dtype=bool)
    return jnp.sum((other < value) | ((other == value) & before), axis=-1)


def middle(values: Each, valid: Which) -> Each:
    """Returns the lower median of the valid ones' values [N], or infinity where there is none; N times."""
    finite = jnp.where(valid, values, jnp.inf)
    chosen = ranks(finite) == jnp.maximum(total(valid) - 1, 0) // 2
    return _for_each_row(jnp.min, jnp.where(chosen, finite, jnp.inf))


def total(values: Each) -> Each:
    """Returns the sum of values [N], or how many are true; N times."""
    return _for_each_row(jnp.sum, values)


def _for_each_row(reduce: Callable[..., Each], values: Each) -> Each:
    # Not by a scalar: what is computed of one that is spread again would be split over devices, and gathered.
    return reduce(jnp.broadcast_to(values, (len(values), len(values))), axis=1)


def ranks_of_rows(x: Rows, valid: Which) -> Int[Array, "N ..."]:
    """Returns each value's rank in its coordinate over the replicas of a leaf [N, ...]; the valid ones come first."""
    # By comparisons: XLA sorts each column by itself on CPUs, and takes minutes to compile a network of minima.
    finite = jnp.where(column(valid, x), x, jnp.inf)
    place = column(np.arange(len(x)), x)
    rank = jnp.zeros(x.shape, jnp.int16)
    for j in range(len(x)):
        rank = rank + ((finite[j] < finite) | ((finite[j] == finite) & (j < place))).astype(jnp.int16)
    return rank


def mean_of_ranks(
    x: Rows, rank: Int[Array, "N ..."], low: int | Int[Array, ""], high: int | Int[Array, ""]
) -> Float[Array, " ..."]:
    """Returns for each coordinate the mean of the values of ranks low up to, not with, high; or 0."""
    kept = (rank >= low) & (rank < high)
    return jnp.sum(jnp.where(kept, x, 0) / jnp.maximum(high - low, 1).astype(x.dtype), axis=0)  # sums could overflow


def median_of(gradients: Gradients, valid: Which) -> Gradient:
    """Returns the median of each coordinate over the valid replicas; 0 where there is none."""
    n = jnp.sum(valid)
    return jax.tree.map(
        lambda x: mean_of_ranks(x, ranks_of_rows(x, valid), (n - 1) // 2, jnp.where(n > 0, n // 2 + 1, 0)), gradients
    )
