"""The spec of an operator's result that needs no communication, given the spec of its operand."""

import math
from collections.abc import Sequence
from functools import lru_cache

from alpa_dejavu.sharding._spec import Shape, Spec, replicated


def transpose_spec(spec: Spec, permutation: Sequence[int]) -> Spec:
    """Returns the mesh axes that cut each dimension of a transpose's result, given those of its operand (`spec`).

    Dimension i of the result is dimension permutation[i] of the operand.

    >>> transpose_spec(((0,), (), (1,)), (2, 0, 1))
    ((1,), (0,), ())
    """
    return tuple(spec[dim] for dim in permutation)


def broadcast_spec(spec: Spec, rank: int, dimensions: Sequence[int]) -> Spec:
    """Returns the mesh axes that cut each dimension of a broadcast's result, given those of its operand (`spec`).

    Dimension dimensions[i] of the result is dimension i of the operand; the result has `rank` dimensions.

    >>> broadcast_spec(((0,),), 2, (1,))
    ((), (0,))
    """
    result = list(replicated(rank))
    for source, target in enumerate(dimensions):
        result[target] = spec[source]
    return tuple(result)


def same_size_spec(spec: Spec, old: Shape, new: Shape) -> Spec | None:
    """Returns the mesh axes that cut each dimension of a slice's or pad's result: those of its operand (`spec`).

    It is None where the operator changes the size of a dimension that is cut.

    >>> same_size_spec(((0,), ()), (8, 8), (8, 4))
    ((0,), ())
    >>> same_size_spec(((0,), ()), (8, 8), (4, 8)) is None
    True
    """
    if any(axes and before != after for axes, before, after in zip(spec, old, new, strict=True)):
        return None
    return spec


def window_spec(spec: Spec, window: Sequence[int]) -> Spec | None:
    """Returns the mesh axes that cut each dimension of a windowed operator's (a pooling's) result: its operand's.

    It is None where the window (its width along each dimension) is wider than 1 along a dimension that is cut.
    """
    if any(axes and size != 1 for axes, size in zip(spec, window, strict=True)):
        return None
    return spec


@lru_cache(maxsize=1 << 16)
def reshape_spec(spec: Spec, old: Shape, new: Shape, mesh_shape: Shape) -> Spec | None:
    """Returns the mesh axes that cut each dimension of a reshape's result, given those of its operand (`spec`).

    It is None where no cut of the result gives each device the same elements. Number the elements in row-major order.
    A mesh axis that cuts a dimension picks a digit of that number; the result can be cut in the same way if that digit
    is the leading one of (what is left of) one of its dimensions.

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
    """Give each digit (a mesh axis, by the number of elements that it divides) to a dimension of the new shape."""
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
