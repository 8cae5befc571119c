"""The history: points, their gradients, and how far they are from each other, in a ring of bounded memory.

Points are kept as differences from an anchor near them, so that distances are one product of a matrix and a vector
and yet don't lose the digits in which near points differ.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.training._scope import groups_of

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, DTypeLike, Float, Int, PyTree

    from alpa_dejavu.training._scope import StageOf

    Leaf: TypeAlias = Float[Array, "..."]
    Rows: TypeAlias = Float[Array, "N ..."]

_FAR = 4.0
"""The anchor moves where the newest point is farther from it than so many times the widest distance from the history,
all squared."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class GradientLayout:
    """The groups and coordinates of parameters, which are known from their shapes alone: the group of each leaf, the
    flat indices of the coordinates that distances are measured on (None: all), and all coordinates over those.
    """

    groups: tuple[str, ...]
    group_of: tuple[int, ...]
    picks: tuple[Int[np.ndarray, " picked"] | None, ...]
    weights: tuple[float, ...]

    def picked(self, leaves: Sequence[Leaf], rows: bool = False) -> list[Leaf]:
        """Returns the picked coordinates of leaves, or of a row of such leaves for each point, in float32."""
        picked_leaves = []
        for leaf, pick in zip(leaves, self.picks, strict=True):
            if pick is not None:
                leaf = leaf.reshape(leaf.shape[0], -1)[:, pick] if rows else leaf.reshape(-1)[pick]
            picked_leaves.append(leaf.astype(jnp.float32))
        return picked_leaves

    def by_group(self, of_leaves: Sequence[Float[Array, " ..."]]) -> Float[Array, "groups ..."]:
        """Returns for each group the sum of what its leaves have over their picked coordinates, others included."""
        sums: list[Array] = [0.0] * len(self.groups)
        for group, weight, own in zip(self.group_of, self.weights, of_leaves, strict=True):
            sums[group] = sums[group] + (own if weight == 1 else weight * own)
        return jnp.stack(sums)


def layout_of(params: PyTree, scope: str, stage_of: StageOf | None, share: float, seed: int) -> GradientLayout:
    """Returns the layout of parameters, or of their shapes."""
    leaves = jax.tree.leaves(params)
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(f"optex: params has a leaf of {leaf.dtype}, but must have real numbers alone; keep the "
                             "others out of the parameters")  # fmt: skip
    if not leaves:
        raise ValueError("optex: params is without arrays, but must have some; give a pytree of them")
    names = groups_of(params, scope, stage_of, "optex")
    groups = tuple(dict.fromkeys(names))
    sizes = [math.prod(leaf.shape) for leaf in leaves]
    picks = tuple(_pick(size, share, [seed, n]) for n, size in enumerate(sizes))
    weights = tuple(1.0 if pick is None else size / len(pick) for size, pick in zip(sizes, picks, strict=True))
    return GradientLayout(groups, tuple(map(groups.index, names)), picks, weights)


def _pick(size: int, share: float, seed: list[int]) -> Int[np.ndarray, " picked"] | None:
    count = math.ceil(share * size)
    if count == size:
        return None
    return np.sort(np.random.default_rng(seed).choice(size, count, replace=False, shuffle=False))


class GradientHistory(NamedTuple):
    """The last T points that were evaluated, in the order of slots: for each leaf the picked coordinates of the anchor,
    differences from it in float32, and gradients; squared lengths of differences and distances of points, and products
    of gradients; the number of each slot's point, -1 where it is empty, and how many points there have been.
    """

    anchor: tuple[Leaf, ...]
    offsets: tuple[Float[Array, "T ..."], ...]
    gradients: tuple[Float[Array, "T ..."], ...]
    lengths: Float[Array, "groups T"]
    distances: Float[Array, "groups T T"]
    products: Float[Array, "groups T T"]
    age: Int[Array, " T"]
    count: Int[Array, ""]


def empty(layout: GradientLayout, params: PyTree, size: int, dtype: DTypeLike) -> GradientHistory:
    """Returns a history of no points, sharded as the parameters are."""
    leaves, groups = jax.tree.leaves(params), len(layout.groups)
    anchor = tuple(jnp.array(point) for point in layout.picked([jnp.asarray(leaf) for leaf in leaves]))
    offsets = tuple(_zeros(size, point, jnp.float32, leaf if pick is None else None)
                    for point, leaf, pick in zip(anchor, leaves, layout.picks, strict=True))  # fmt: skip
    gradients = tuple(_zeros(size, leaf, dtype, leaf) for leaf in leaves)
    lengths, square = jnp.zeros((groups, size), jnp.float32), jnp.zeros((groups, size, size), jnp.float32)
    age, count = jnp.full(size, -1, jnp.int32), jnp.zeros((), jnp.int32)
    return GradientHistory(anchor, offsets, gradients, lengths, square, jnp.zeros_like(square), age, count)


def needed_bytes(layout: GradientLayout, params: PyTree, size: int, dtype: DTypeLike) -> int:
    """Returns the bytes of a history on each device, known from shapes and shardings alone."""
    total = 0
    for leaf, pick, weight in zip(jax.tree.leaves(params), layout.picks, layout.weights, strict=True):
        sharding = getattr(leaf, "sharding", None)
        own = math.prod(leaf.shape if sharding is None else sharding.shard_shape(leaf.shape))
        points = own if pick is None else round(math.prod(leaf.shape) / weight)
        total += size * own * jnp.dtype(dtype).itemsize + (size + 1) * points * 4
    return total + len(layout.groups) * (2 * size * size + size) * 4 + (size + 1) * 4


def nearness(layout: GradientLayout, history: GradientHistory, point: Sequence[Leaf]) -> Float[Array, "groups T"]:
    """Returns the squared distances of a point's leaves from the history's points."""
    moved = [p - a for p, a in zip(layout.picked(point), history.anchor, strict=True)]
    crossed = [jnp.tensordot(o, p, p.ndim) for o, p in zip(history.offsets, moved, strict=True)]
    far = layout.by_group([squared_length(p) - 2 * c for p, c in zip(moved, crossed, strict=True)])
    return jnp.where(history.age >= 0, jnp.maximum(history.lengths + far, 0), 0)


def estimated(layout: GradientLayout, history: GradientHistory, weights: Float[Array, "groups T"]) -> list[Leaf]:
    """Returns the sum of the history's gradients with weights, in float32."""

    # Row by row: XLA makes float32 copies of all rows for a product with a matrix of bfloat16 on CPUs.
    def plus(total: Leaf, row: tuple[Float[Array, ""], Leaf]) -> tuple[Leaf, None]:
        return total + row[0] * row[1].astype(jnp.float32), None

    return [jax.lax.scan(plus, jnp.zeros(kept.shape[1:], jnp.float32), (weights[group], kept), unroll=5)[0]
            for group, kept in zip(layout.group_of, history.gradients, strict=True)]  # fmt: skip


def squared_length(leaf: Leaf) -> Float[Array, ""]:
    """Returns the squared length of a leaf: XLA sums squares several times as fast on CPUs as it multiplies vectors."""
    return jnp.sum(jnp.square(leaf))


def products_among(layout: GradientLayout, gradients: Sequence[Rows]) -> Float[Array, "groups N N"]:
    """Returns the products of new gradients with each other."""
    return layout.by_group([_among(g) for g in layout.picked(gradients, rows=True)])


def products_with(
    layout: GradientLayout, history: GradientHistory, gradients: Sequence[Rows]
) -> Float[Array, "groups N T"]:
    """Returns the products of new gradients with the history's."""
    kept, new = layout.picked(history.gradients, rows=True), layout.picked(gradients, rows=True)
    inner = [tuple(range(1, a.ndim)) for a in kept]
    # The history comes first: XLA takes several times as long on CPUs where the matrix with fewer rows does.
    by_leaf = [jax.lax.dot_general(a, b, ((n, n), ((), ()))) for a, b, n in zip(kept, new, inner, strict=True)]
    return jnp.swapaxes(layout.by_group(by_leaf), 1, 2)


def appended(
    layout: GradientLayout, history: GradientHistory, points: Sequence[Rows], gradients: Sequence[Rows],
    is_valid: Bool[Array, " N"], distances: Float[Array, "groups N T"], products: Float[Array, "groups N T"],
    among: Float[Array, "groups N N"],
) -> GradientHistory:  # fmt: skip
    """Returns the history with the valid ones of new points, N at most T, in place of the oldest.

    Distances are squared, from the history's points; products are of gradients with the history's, or among new ones.
    """
    size = len(history.age)
    # Products may overflow. That slots depend on them has XLA read the history before it changes it, without a copy.
    is_valid = is_valid & jnp.all(jnp.isfinite(products), axis=(0, 2))
    number = history.count + jnp.cumsum(is_valid, dtype=jnp.int32) - 1
    slots = jnp.where(is_valid, number % size, size)  # out of the ring: dropped
    new = layout.picked(points, rows=True)
    # What isn't finite is dropped, but must not get into sums with those that are.
    clean = [jnp.where(is_valid.reshape(-1, *(1,) * (g.ndim - 1)), g, 0).astype(history.gradients[0].dtype)
             for g in gradients]  # fmt: skip
    between = layout.by_group([_between(p) for p in new])
    history = _anchored(layout, history, [p[0] for p in new], distances[:, 0])
    offsets = [p - a for p, a in zip(new, history.anchor, strict=True)]
    lengths = layout.by_group([jnp.sum(jnp.square(o), axis=tuple(range(1, o.ndim))) for o in offsets])

    def stored(kept: Float[Array, "T ..."], rows: Rows) -> Float[Array, "T ..."]:
        return kept.at[slots].set(rows.astype(kept.dtype), mode="drop")

    def square(
        kept: Float[Array, "groups T T"], with_kept: Float[Array, "groups N T"], with_new: Float[Array, "groups N N"]
    ) -> Float[Array, "groups T T"]:
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
    layout: GradientLayout, history: GradientHistory, point: Sequence[Leaf], distances: Float[Array, "groups T"]
) -> GradientHistory:
    """The history with its anchor moved to a point where that is far from the old one, or where nothing is known."""
    move = [p - a for p, a in zip(point, history.anchor, strict=True)]
    far = jnp.sum(layout.by_group([squared_length(m) for m in move]))
    is_far = far > _FAR * jnp.max(jnp.sum(distances, axis=0))
    return history._replace(
        anchor=tuple(jnp.where(is_far, p, a) for p, a in zip(point, history.anchor, strict=True)),
        offsets=jax.lax.cond(is_far, lambda offsets: tuple(o - m for o, m in zip(offsets, move, strict=True)),
                             lambda offsets: offsets, history.offsets),
        lengths=jnp.where(is_far, distances, history.lengths),
    )  # fmt: skip


def _among(rows: Rows) -> Float[Array, "N N"]:
    """The products of rows with each other: XLA takes several times as long on CPUs for all in one product."""
    return jnp.stack([jnp.tensordot(rows, row, row.ndim) for row in rows])


def _between(points: Rows) -> Float[Array, "N N"]:
    """The squared distances of the points of a leaf, by the steps from each point to the next one."""
    if len(points) == 1:
        return jnp.zeros((1, 1))
    products = _among(points[1:] - points[:-1])
    place = np.arange(len(points))
    low, high = np.minimum(place[:, None], place), np.maximum(place[:, None], place)
    on_way = (low[..., None] <= place[:-1]) & (place[:-1] < high[..., None])
    return jnp.maximum(jnp.einsum("ija,ab,ijb->ij", on_way, products, on_way), 0)


def _zeros(size: int, like: Leaf, dtype: DTypeLike, sharded_as: Leaf | None) -> Float[Array, "T ..."]:
    """Zeros [size, ...], sharded as a leaf is, with its points on all of the leaf's devices."""
    zeros = jnp.zeros((size, *like.shape), dtype)
    sharding = getattr(sharded_as, "sharding", None)
    if not isinstance(sharding, NamedSharding) or isinstance(sharded_as, core.Tracer):
        return zeros
    return jax.device_put(zeros, NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec)))
