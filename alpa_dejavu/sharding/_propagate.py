"""The spec of an operator's result that needs no communication, given the spec of its operand."""

import math
from collections.abc import Sequence
from functools import lru_cache

from alpa_dejavu.sharding._spec import Shape, Spec, replicated


def transpose_spec(spec: Spec, permutation: Sequence[int]) -> Spec:
    """Returns how a transposition's result is cut: its dimension i is dimension permutation[i] of the operand.

    >>> transpose_spec(((0,), (), (1,)), (2, 0, 1))
    ((1,), (0,), ())
    """
    return tuple(spec[dim] for dim in permutation)


def broadcast_spec(spec: Spec, rank: int, dimensions: Sequence[int]) -> Spec:
    """Returns how a broadcast's result is cut: its dimension dimensions[i] is dimension i of the operand.

    >>> broadcast_spec(((0,),), 2, (1,))
    ((), (0,))
    """
    result = list(replicated(rank))
    for source, target in enumerate(dimensions):
        result[target] = spec[source]
    return tuple(result)


def same_size_spec(spec: Spec, old: Shape, new: Shape) -> Spec | None:
    """Returns how the result of a slice, pad or the like is cut; None where it changes a cut dimension's size.

    >>> same_size_spec(((0,), ()), (8, 8), (8, 4))
    ((0,), ())
    >>> same_size_spec(((0,), ()), (8, 8), (4, 8)) is None
    True
    """
    if any(axes and before != after for axes, before, after in zip(spec, old, new, strict=True)):
        return None
    return spec


def window_spec(spec: Spec, window: Sequence[int]) -> Spec | None:
    """Returns how a windowed operator's result is cut; None where a cut dimension's window is wider than 1."""
    if any(axes and size != 1 for axes, size in zip(spec, window, strict=True)):
        return None
    return spec


@lru_cache(maxsize=1 << 16)
def reshape_spec(spec: Spec, old: Shape, new: Shape, mesh_shape: Shape) -> Spec | None:
    """Returns how a reshape's result is cut, or None where the parts of the operand are no parts of the result.

    Number the elements in row-major order. An axis that cuts a dimension picks a digit of that number; the result
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
