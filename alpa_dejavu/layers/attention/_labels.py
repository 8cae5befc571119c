"""Where the dimensions of scores are in what is computed from them: labels of dimensions, equation by equation.

A value's labels are those of its dimensions, a number for each dimension of the scores; `SEVERAL` for one that was made
of several or is a part of one, and None for dimensions of size 1 and those along which values are repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers._jaxprs import shape_of
from alpa_dejavu.layers.features.operator_kinds import is_elementwise

Labels = tuple[int | None, ...]
SEVERAL = -1
RESHAPES = frozenset({"reshape", "squeeze", "expand_dims"})


def forward_labels(equation: core.JaxprEqn, place: int, labels: Labels) -> Labels | None:
    """Returns the labels of an equation's result by those of an operand; None if it mixes dimensions."""
    name, shape = equation.primitive.name, shape_of(equation.outvars[0])
    if is_elementwise(equation):
        return labels if len(labels) == len(shape) else None
    if name == "transpose":
        return tuple(labels[dim] for dim in equation.params["permutation"])
    if name == "broadcast_in_dim":
        return _put(len(shape), equation.params["broadcast_dimensions"], labels)
    if name in RESHAPES:
        return reshaped(shape_of(equation.invars[place]), labels, shape)
    if "axes" in equation.params and name.startswith("reduce_"):
        return tuple(label for dim, label in enumerate(labels) if dim not in equation.params["axes"])
    return None


def backward_labels(equation: core.JaxprEqn, place: int, labels: Labels) -> Labels | None:
    """Returns the labels of the operand at a place, given those of an equation's result; None if they aren't known."""
    name, shape = equation.primitive.name, shape_of(equation.invars[place])
    if is_elementwise(equation):
        if len(shape) != len(labels):
            return None
        return tuple(label if size > 1 else None for label, size in zip(labels, shape, strict=True))
    if name == "transpose":
        return _put(len(shape), equation.params["permutation"], labels)
    if name == "broadcast_in_dim":
        dims = equation.params["broadcast_dimensions"]
        return tuple(labels[dim] if size > 1 else None for dim, size in zip(dims, shape, strict=True))
    if name in RESHAPES:
        return reshaped(shape_of(equation.outvars[0]), labels, shape)
    return None


def _put(count: int, dims: Sequence[int], labels: Labels) -> Labels:
    """Labels at some of so many dimensions."""
    placed = dict(zip(dims, labels, strict=True))
    return tuple(placed.get(dim) for dim in range(count))


def reshaped(shape: Sequence[int], labels: Labels, new_shape: Sequence[int]) -> Labels:
    """Returns the labels of a reshaped value.

    >>> reshaped((2, 3, 4), (0, 1, 2), (6, 1, 4))
    (-1, None, 2)
    """
    old = [dim for dim, size in enumerate(shape) if size > 1]
    new = [dim for dim, size in enumerate(new_shape) if size > 1]
    result: list[int | None] = [None] * len(new_shape)
    while old and new:
        left, right = [old.pop(0)], [new.pop(0)]
        while (a := math.prod(shape[d] for d in left)) != (b := math.prod(new_shape[d] for d in right)):
            side, rest = (left, old) if a < b else (right, new)
            side.append(rest.pop(0))
        for dim in right:
            result[dim] = labels[left[0]] if len(left) == len(right) == 1 else SEVERAL
    return tuple(result)


def united(first: Labels, second: Labels) -> Labels | None:
    """Returns the labels of a value that has both; None if they contradict each other."""
    if len(first) != len(second):
        return None
    pairs = list(zip(first, second, strict=True))
    if any(None not in pair and SEVERAL not in pair and pair[0] != pair[1] for pair in pairs):
        return None
    return tuple(b if a is None or (a == SEVERAL and b is not None) else a for a, b in pairs)
