"""Specs: which mesh axes cut which dimension of a tensor, and how operators that move elements carry that on."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    axes_by_dim = dict(cuts)
    return tuple(tuple(axis for axis in axes_by_dim.get(dim, ()) if mesh_shape[axis] > 1) for dim in range(rank))


def of_rank(spec: Spec, rank: int) -> Spec:
    """Returns a spec if the rank is its own; else that of a tensor of that rank that every device has whole."""
    return spec if len(spec) == rank else replicated(rank)


def is_replicated(spec: Spec) -> bool:
    """Returns whether every device has the whole tensor."""
    return not any(spec)


@lru_cache(maxsize=1 << 16)
def axes_of(spec: Spec) -> tuple[int, ...]:
    """Returns all mesh axes that cut a tensor, in the order of its dimensions."""
    return tuple(axis for axes in spec for axis in axes)


@lru_cache(maxsize=1 << 16)
def num_tiles(spec: Spec, mesh_shape: Shape) -> int:
    """Returns the number of different parts into which a spec cuts a tensor.

    >>> num_tiles(((0, 1), ()), (2, 4))
    8
    """
    return math.prod(mesh_shape[axis] for axis in axes_of(spec))


@lru_cache(maxsize=1 << 16)
def divides(spec: Spec, shape: Shape, mesh_shape: Shape) -> bool:
    """Returns whether a spec cuts a tensor into parts of equal size."""
    return all(size % math.prod(mesh_shape[axis] for axis in axes) == 0 for size, axes in zip(shape, spec, strict=True))


@lru_cache(maxsize=1 << 16)
def fills(spec: Spec, shape: Shape, mesh_shape: Shape) -> bool:
    """Returns whether each dimension of a tensor is at least as long as the number of parts that a spec cuts it into.

    Else some device would have an empty part.
    """
    return all(size >= math.prod(mesh_shape[axis] for axis in axes) for size, axes in zip(shape, spec, strict=True))


def carried_spec(spec: Spec, pairs: Sequence[tuple[int, int]], rank: int) -> Spec | None:
    """Returns the spec of an operator's result of `rank` dimensions, given pairs (dimension of an operand, dimension of
    the result) that it leaves as they are; None where another dimension of the operand is cut.

    >>> carried_spec(((0,), (), (1,)), [(2, 0), (0, 1), (1, 2)], 3)
    ((1,), (0,), ())
    >>> carried_spec(((0,), ()), [(1, 1)], 2) is None
    True
    """
    after = dict(pairs)
    if any(axes and dim not in after for dim, axes in enumerate(spec)):
        return None
    axes_by_dim = {after[dim]: axes for dim, axes in enumerate(spec) if axes}
    return tuple(axes_by_dim.get(dim, ()) for dim in range(rank))


@lru_cache(maxsize=1 << 16)
def reshape_spec(spec: Spec, old: Shape, new: Shape, mesh_shape: Shape) -> Spec | None:
    """Returns the spec of a reshape's result; None where no cut of it gives each device the same elements.

    Number the elements in row-major order. A mesh axis that cuts a dimension picks a digit of that number; the result
    can be cut in the same way if that digit is the leading one of (what is left of) one of its dimensions.

    >>> reshape_spec(((0,), ()), (8, 6), (4, 2, 6), (4, 1))
    ((0,), (), ())
    >>> reshape_spec(((), (0,)), (8, 6), (48,), (2, 1)) is None
    True
    >>> reshape_spec(((0, 1),), (8,), (2, 4), (2, 2))
    ((0,), (1,))
    """
    if old == new or not any(spec):
        return spec if old == new else replicated(len(new))
    digits: dict[int, tuple[int, int]] = {}
    whole: dict[tuple[int, int], tuple[int, ...]] = {}
    inner = math.prod(old)
    for size, axes in zip(old, spec, strict=True):
        inner //= max(size, 1)
        if not axes:
            continue
        if size % math.prod(mesh_shape[axis] for axis in axes):
            whole[(size, inner)] = axes
            continue
        top = size * inner
        for axis in axes:
            digits[top] = (axis, mesh_shape[axis])
            top //= mesh_shape[axis]
    return _place_digits(digits, whole, new)


def _place_digits(
    digits: dict[int, tuple[int, int]], whole: dict[tuple[int, int], tuple[int, ...]], new: Shape
) -> Spec | None:
    """Gives each digit (a mesh axis, by the number of elements that it divides) to a dimension of the new shape."""
    result: list[tuple[int, ...]] = []
    inner = math.prod(new)
    for size in new:
        inner //= max(size, 1)
        if (size, inner) in whole:  # cut into unequal parts: only the very same dimension may stay so
            result.append(whole.pop((size, inner)))
            continue
        axes: list[int] = []
        top = size * inner
        while top > inner and top in digits and (top // inner) % digits[top][1] == 0:
            axis, length = digits.pop(top)
            axes.append(axis)
            top //= length
        result.append(tuple(axes))
    return None if digits or whole else tuple(result)
