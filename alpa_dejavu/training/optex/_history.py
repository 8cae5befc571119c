"""The history: points, their gradients, and how far they are from each other, in a ring of bounded memory.

Points are kept as differences from an anchor near them, so that distances are one product of a matrix and a vector
and yet don't lose the digits in which near points differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from alpa_dejavu.training.optex._layout import GradientLayout

_FAR = 4.0
"""The anchor moves where the newest point is farther from it than so many times the widest distance from the history,
all squared."""


class GradientHistory(NamedTuple):
    """The last T points that were evaluated, in the order of slots.

    Attributes:
        anchor: for each leaf the picked coordinates of the point that others are kept as differences from.
        offsets: for each leaf the differences, shape [T, picked] or [T, *shape], float32.
        gradients: for each leaf the gradients, shape [T, *shape].
        lengths: the squared length of the differences by group, shape [groups, T].
        distances: the squared distances of points, shape [groups, T, T].
        products: the products of gradients, shape [groups, T, T].
        age: the number of each slot's point, shape [T]; -1: the slot is empty.
        count: how many points there have been.
    """

    anchor: tuple[Any, ...]
    offsets: tuple[Any, ...]
    gradients: tuple[Any, ...]
    lengths: jax.Array
    distances: jax.Array
    products: jax.Array
    age: jax.Array
    count: jax.Array


def empty(layout: GradientLayout, params: Any, size: int, dtype: Any) -> GradientHistory:
    """Returns a history of no points, sharded as the parameters are."""
    leaves, groups = jax.tree_util.tree_leaves(params), len(layout.groups)
    anchor = [jnp.array(point) for point in layout.picked([jnp.asarray(leaf) for leaf in leaves])]
    offsets = [
        _zeros(size, point, jnp.float32, leaf if pick is None else None)
        for point, leaf, pick in zip(anchor, leaves, layout.picks, strict=True)
    ]
    gradients = [_zeros(size, leaf, dtype, leaf) for leaf in leaves]
    square = jnp.zeros((groups, size, size), jnp.float32)
    return GradientHistory(
        tuple(anchor), tuple(offsets), tuple(gradients), jnp.zeros((groups, size), jnp.float32), square,
        jnp.zeros_like(square), jnp.full(size, -1, jnp.int32), jnp.zeros((), jnp.int32),
    )  # fmt: skip


def needed_bytes(layout: GradientLayout, params: Any, size: int, dtype: Any) -> int:
    """Returns the bytes of a history on each device, known from shapes and shardings alone."""
    total = 0
    for leaf, pick, weight in zip(jax.tree_util.tree_leaves(params), layout.picks, layout.weights, strict=True):
        sharding = getattr(leaf, "sharding", None)
        own = math.prod(leaf.shape if sharding is None else sharding.shard_shape(leaf.shape))
        points = own if pick is None else round(math.prod(leaf.shape) / weight)
        total += size * own * jnp.dtype(dtype).itemsize + (size + 1) * points * 4
    return total + len(layout.groups) * (2 * size * size + size) * 4 + (size + 1) * 4


def is_known(history: GradientHistory) -> Any:
    """Returns which slots hold a point, shape [T]."""
    return history.age >= 0


def nearness(layout: GradientLayout, history: GradientHistory, point: Sequence[Any]) -> Any:
    """Returns the squared distances of a point, leaves without a dimension before, from the history's: [groups, T]."""
    moved = [p - a for p, a in zip(layout.picked(point), history.anchor, strict=True)]
    crossed = [jnp.tensordot(o, p, p.ndim) for o, p in zip(history.offsets, moved, strict=True)]
    own = [squared_length(p) for p in moved]
    far = layout.by_group([o - 2 * c for o, c in zip(own, crossed, strict=True)])
    return jnp.where(is_known(history), jnp.maximum(history.lengths + far, 0), 0)


def estimated(layout: GradientLayout, history: GradientHistory, weights: jax.Array) -> list[Any]:
    """Returns the sum of the history's gradients with weights [groups, T], leaves in float32."""
    return [_weighted(weights[group], kept) for group, kept in zip(layout.group_of, history.gradients, strict=True)]


def squared_length(leaf: Any) -> Any:
    """Returns the squared length of a leaf: XLA sums squares several times as fast on CPUs as it multiplies vectors."""
    return jnp.sum(jnp.square(leaf))


def products_among(layout: GradientLayout, gradients: Sequence[Any]) -> Any:
    """Returns the products of new gradients, leaves [N, *shape], with each other, shape [groups, N, N]."""
    return layout.by_group([_among(g) for g in layout.picked(gradients, rows=True)])


def products_with(layout: GradientLayout, history: GradientHistory, gradients: Sequence[Any]) -> Any:
    """Returns the products of new gradients, leaves [N, *shape], with the history's, [groups, N, T]."""
    kept, new = layout.picked(history.gradients, rows=True), layout.picked(gradients, rows=True)
    # The history comes first: XLA takes several times as long on CPUs where the matrix with fewer rows does.
    return jnp.swapaxes(layout.by_group(_products(kept, new)), 1, 2)


def added(
    layout: GradientLayout, history: GradientHistory, points: Sequence[Any], gradients: Sequence[Any],
    is_valid: jax.Array, distances: jax.Array, products: jax.Array, among: jax.Array,
) -> GradientHistory:  # fmt: skip
    """Returns the history with new points in place of the oldest.

    Args:
        layout, history: the parameters' layout, and what is added to.
        points, gradients: leaves [N, *shape], N at most T.
        is_valid: which points are added, shape [N].
        distances: their squared distances from the history's, [groups, N, T].
        products: the products of their gradients with the history's, [groups, N, T].
        among: the products of their gradients with each other, [groups, N, N].
    """
    size = len(history.age)
    # Products may overflow. That slots depend on them has XLA read the history before it changes it, without a copy.
    is_valid = is_valid & jnp.all(jnp.isfinite(products), axis=(0, 2))
    number = history.count + jnp.cumsum(is_valid, dtype=jnp.int32) - 1
    slots = jnp.where(is_valid, number % size, size)  # out of the ring: dropped
    new = layout.picked(points, rows=True)
    dtype = history.gradients[0].dtype
    # What isn't finite is dropped, but must not get into sums with those that are.
    clean = [jnp.where(_rows(is_valid, g), g, 0).astype(dtype) for g in gradients]
    between = layout.by_group([_between(p) for p in new])
    history = _anchored(layout, history, [p[0] for p in new], distances[:, 0])
    offsets = [p - a for p, a in zip(new, history.anchor, strict=True)]
    lengths = layout.by_group([jnp.sum(jnp.square(o), axis=tuple(range(1, o.ndim))) for o in offsets])

    def stored(kept: Any, rows: Any) -> Any:
        return kept.at[slots].set(rows.astype(kept.dtype), mode="drop")

    def square(kept: Any, with_kept: Any, with_new: Any) -> Any:
        kept = kept.at[:, slots].set(with_kept, mode="drop")
        kept = kept.at[:, :, slots].set(jnp.swapaxes(with_kept, 1, 2), mode="drop")
        return kept.at[:, slots[:, None], slots].set(with_new, mode="drop")

    return GradientHistory(
        history.anchor,
        tuple(map(stored, history.offsets, offsets)),
        tuple(map(stored, history.gradients, clean)),
        history.lengths.at[:, slots].set(lengths, mode="drop"),
        square(history.distances, distances, between),
        square(history.products, jnp.where(is_valid[:, None], products, 0), among),
        history.age.at[slots].set(number, mode="drop"),
        history.count + jnp.sum(is_valid, dtype=jnp.int32),
    )


def _anchored(
    layout: GradientLayout, history: GradientHistory, point: Sequence[Any], distances: Any
) -> GradientHistory:
    """The history with its anchor moved to a point where that is far from the old one, or where nothing is known."""
    move = [p - a for p, a in zip(point, history.anchor, strict=True)]
    far = jnp.sum(layout.by_group([squared_length(m) for m in move]))
    is_far = far > _FAR * jnp.max(jnp.sum(distances, axis=0))

    def moved(offsets: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(o - m for o, m in zip(offsets, move, strict=True))

    return history._replace(
        anchor=tuple(jnp.where(is_far, p, a) for p, a in zip(point, history.anchor, strict=True)),
        offsets=jax.lax.cond(is_far, moved, lambda offsets: offsets, history.offsets),
        lengths=jnp.where(is_far, distances, history.lengths),
    )


def _weighted(weights: jax.Array, rows: Any) -> Any:
    # Row by row: XLA makes float32 copies of all rows for a product with a matrix of bfloat16 on CPUs.
    def plus(total: Any, row: Any) -> tuple[Any, None]:
        return total + row[0] * row[1].astype(jnp.float32), None

    return jax.lax.scan(plus, jnp.zeros(rows.shape[1:], jnp.float32), (weights, rows), unroll=5)[0]


def _products(left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
    by_leaf = []
    for a, b in zip(left, right, strict=True):
        inner = tuple(range(1, a.ndim))
        by_leaf.append(jax.lax.dot_general(a, b, ((inner, inner), ((), ()))))
    return by_leaf


def _among(rows: Any) -> Any:
    """The products [N, N] of rows with each other: XLA takes several times as long on CPUs for all in one product."""
    return jnp.stack([jnp.tensordot(rows, row, row.ndim) for row in rows])


def _between(points: Any) -> Any:
    """The squared distances of the points of a leaf, [N, N], by the steps from each point to the next one."""
    count = len(points)
    if count == 1:
        return jnp.zeros((1, 1))
    products = _among(points[1:] - points[:-1])
    place = np.arange(count)
    low, high = np.minimum(place[:, None], place), np.maximum(place[:, None], place)
    on_way = (low[..., None] <= place[:-1]) & (place[:-1] < high[..., None])
    return jnp.maximum(jnp.einsum("ija,ab,ijb->ij", on_way, products, on_way), 0)


def _rows(of_points: Any, leaf: Any) -> Any:
    return of_points.reshape(-1, *(1,) * (leaf.ndim - 1))


def _zeros(size: int, like: Any, dtype: Any, sharded_as: Any) -> Any:
    """Zeros [size, ...], sharded as a leaf is, with its points on all of the leaf's devices."""
    zeros = jnp.zeros((size, *like.shape), dtype)
    sharding = getattr(sharded_as, "sharding", None)
    if not isinstance(sharding, NamedSharding) or isinstance(sharded_as, jax.core.Tracer):
        return zeros
    return jax.device_put(zeros, NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec)))
