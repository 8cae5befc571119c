"""Which mesh axes cut which dimension of a tensor."""

import math
from functools import lru_cache

Spec = tuple[tuple[int, ...], ...]
"""For each dimension of a tensor the mesh axes that cut it, the outermost first.

`((0,), ())` is a matrix whose rows are cut along axis 0; `((0, 1), ())` one whose rows are cut over all devices of a
two-dimensional mesh; `((), ())` one that every device has whole. An axis of length 1 never appears.
"""

Shape = tuple[int, ...]


def replicated(rank: int) -> Spec:
    """Returns the spec of a tensor that every device has whole: no mesh axis cuts any dimension.

    >>> replicated(2)
    ((), ())
    """
    return ((),) * rank


def tile(rank: int, cuts: dict[int, tuple[int, ...]], mesh_shape: Shape) -> Spec:
    """Returns for each of a tensor's dimensions the mesh axes that cut it, given the cut ones, less axes of length 1.

    >>> tile(2, {0: (0,), 1: (1,)}, (4, 1))
    ((0,), ())
    """
    return _tile(rank, tuple(cuts.items()), mesh_shape)


@lru_cache(maxsize=1 << 16)
def _tile(rank: int, cuts: tuple[tuple[int, tuple[int, ...]], ...], mesh_shape: Shape) -> Spec:
    found = dict(cuts)
    return tuple(tuple(axis for axis in found.get(dim, ()) if mesh_shape[axis] > 1) for dim in range(rank))


def of_rank(spec: Spec, rank: int) -> Spec:
    """Returns a spec (for each dimension of a tensor the mesh axes that cut it) for an operand of the given rank.

    It is the spec itself if the rank is its own; else that of a tensor that every device has whole.
    """
    return spec if len(spec) == rank else replicated(rank)


def is_replicated(spec: Spec) -> bool:
    """Returns whether every device has the whole tensor under a spec, the mesh axes that cut each dimension."""
    return not any(spec)


@lru_cache(maxsize=1 << 16)
def axes_of(spec: Spec) -> tuple[int, ...]:
    """Returns all mesh axes that cut a tensor, in the order of its dimensions, given those of each dimension."""
    return tuple(axis for axes in spec for axis in axes)


@lru_cache(maxsize=1 << 16)
def num_tiles(spec: Spec, mesh_shape: Shape) -> int:
    """Returns the number of different parts into which a spec, the mesh axes of each dimension, cuts a tensor.

    >>> num_tiles(((0, 1), ()), (2, 4))
    8
    """
    return math.prod(mesh_shape[axis] for axis in axes_of(spec))


@lru_cache(maxsize=1 << 16)
def divides(spec: Spec, shape: Shape, mesh_shape: Shape) -> bool:
    """Returns whether a spec, the mesh axes that cut each dimension, cuts a tensor into parts of equal size."""
    return all(size % math.prod(mesh_shape[axis] for axis in axes) == 0 for size, axes in zip(shape, spec, strict=True))


@lru_cache(maxsize=1 << 16)
def fills(spec: Spec, shape: Shape, mesh_shape: Shape) -> bool:
    """Returns whether each dimension of a tensor is at least as long as the number of parts that a spec cuts it into.

    Else some device would have an empty part. A spec has for each dimension the mesh axes that cut it.
    """
    return all(size >= math.prod(mesh_shape[axis] for axis in axes) for size, axes in zip(shape, spec, strict=True))
