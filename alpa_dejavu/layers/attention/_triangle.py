"""Whether a mask is causal: what a value has above the diagonal, as far as it is the same number for all elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
from jax import core, dtypes
from numpy.typing import NDArray

from alpa_dejavu.layers.attention._equations import Equations
from alpa_dejavu.layers.attention._labels import shape_of

_MASKED = -1000.0
"""A score below this is masked: its exponential is 0."""
_SAME = frozenset({"convert_element_type", "copy", "copy_p", "stop_gradient", "name", "reduce_precision"})
_MOVES = frozenset({"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "slice"})
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal, "lt": np.less, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum,
    "min": np.minimum, **_COMPARISONS,
}  # fmt: skip
Line = tuple[float, dict[int, float]]
"""A value that is a number plus, for some of its dimensions, a factor times the index along it."""


@final
class Triangle:
    """A reader of the number that a value has at all places whose column is beyond their row by more than `shift`."""

    def __init__(self, equations: Equations, shift: int) -> None:
        self._equations, self._shift = equations, shift
        self._numbers: dict[tuple[core.Var, int, int], float | None] = {}

    def masks(self, scores: core.Var, row: int, column: int) -> bool:
        """Returns whether scores are masked above the diagonal of two of their dimensions."""
        value = self._above(scores, row, column)
        return value is not None and value < _MASKED

    def _above(self, atom: core.Atom, row: int, column: int) -> float | None:
        """The number that all elements above the diagonal are; None if it isn't known to be one."""
        if isinstance(atom, core.Literal):
            return float(atom.val) if np.ndim(atom.val) == 0 else None
        key = atom, row, column
        if key not in self._numbers:
            equation = self._equations.maker(atom)
            if equation is not None:
                self._numbers[key] = self._made(equation, row, column)
            else:
                self._numbers[key] = self._number(self._equations.values.get(atom), row, column)
        return self._numbers[key]

    def _number(self, array: Any, row: int, column: int) -> float | None:
        """The number that all elements of an array of known numbers above the diagonal are."""
        if array is None or not any(dtypes.issubdtype(array.dtype, kind) for kind in (np.number, np.bool_)):
            return None
        numbers = np.asarray(array)
        if row >= 0 and column >= 0:
            moved: NDArray[Any] = np.moveaxis(numbers, (row, column), (-2, -1))
            below = np.tri(moved.shape[-2], moved.shape[-1], self._shift, dtype=np.bool_)
            numbers = moved.reshape(-1, *below.shape)[:, ~below]
        numbers = numbers.ravel()
        return float(numbers[0]) if numbers.size and (numbers == numbers[0]).all() else None

    def _made(self, equation: core.JaxprEqn, row: int, column: int) -> float | None:
        name, operands = equation.primitive.name, equation.invars
        if name in _MOVES:
            places = _sources(equation)
            return None if places is None else self._above(operands[0], places.get(row, -1), places.get(column, -1))
        if name in _SAME:
            return self._above(operands[0], row, column)
        if name not in (*_ARITHMETIC, "select_n", "and", "or", "not", "neg"):
            return None
        # A number has no dimensions.
        values = [self._above(atom, *((row, column) if shape_of(atom) else (-1, -1))) for atom in operands]
        if name == "select_n":
            return _selected(values)
        if name in ("not", "neg"):
            return None if values[0] is None else float(not values[0]) if name == "not" else -values[0]
        if name in ("and", "or"):
            decisive = float(name == "or")
            return decisive if decisive in values else values[0] if values[0] == values[1] else None
        result = _computed(name, *values)
        return self._compared(equation, row, column) if result is None and name in _COMPARISONS else result

    def _compared(self, equation: core.JaxprEqn, row: int, column: int) -> float | None:
        """The answer of a comparison of indices above the diagonal."""
        left, right = (self._line(atom) for atom in equation.invars)
        if left is None or right is None or row < 0 or column < 0:
            return None
        factors = {d: left[1].get(d, 0.0) - right[1].get(d, 0.0) for d in {*left[1], *right[1]}}
        slope = factors.pop(column, 0.0)
        if slope == 0 or factors.pop(row, 0.0) != -slope or any(factors.values()):
            return None
        nearest = left[0] - right[0] + slope * (1 + self._shift)
        compare = _COMPARISONS[equation.primitive.name]
        # The difference goes on from there to infinity in one direction.
        answers = {bool(compare(value, 0)) for value in (nearest, nearest + slope, math.copysign(math.inf, slope))}
        return float(answers.pop()) if len(answers) == 1 else None

    def _line(self, atom: core.Atom) -> Line | None:
        """A value as a linear function of its indices; None if it isn't one."""
        if isinstance(atom, core.Literal):
            return (float(atom.val), {}) if np.ndim(atom.val) == 0 else None
        equation = self._equations.maker(atom)
        if equation is None:
            return None
        name = equation.primitive.name
        if name == "iota":
            return 0.0, {equation.params["dimension"]: 1.0}
        if name in _MOVES:
            line, places = self._line(equation.invars[0]), _sources(equation)
            if line is None or places is None:
                return None
            return line[0], {dim: line[1][source] for dim, source in places.items() if source in line[1]}
        if name in _SAME:
            return self._line(equation.invars[0])
        if name not in ("add", "sub", "mul"):
            return None
        left, right = (self._line(operand) for operand in equation.invars)
        if left is None or right is None:
            return None
        if name == "mul":
            if left[1] and right[1]:
                return None
            factor, (number, factors) = (left[0], right) if right[1] else (right[0], left)
            return factor * number, {dim: factor * value for dim, value in factors.items()}
        sign = 1.0 if name == "add" else -1.0
        dims = {*left[1], *right[1]}
        return left[0] + sign * right[0], {d: left[1].get(d, 0.0) + sign * right[1].get(d, 0.0) for d in dims}


def _sources(equation: core.JaxprEqn) -> dict[int, int] | None:
    """For dimensions of a moved value those of the value that it is moved from; None if it isn't known."""
    shape, result = shape_of(equation.invars[0]), shape_of(equation.outvars[0])
    name, params = equation.primitive.name, equation.params
    if name == "broadcast_in_dim":
        dims = params["broadcast_dimensions"]
        return {dim: n for n, dim in enumerate(dims) if shape[n] == result[dim] and shape[n] > 1}
    if name == "transpose":
        return dict(enumerate(params["permutation"]))
    if name == "slice":
        starts, strides = params["start_indices"], params["strides"]
        cut = [n for n in range(len(shape)) if shape[n] > 1]
        if any(starts[n] for n in cut) or (strides is not None and any(strides[n] != 1 for n in cut)):
            return None
        return {n: n for n in cut}
    wide, wide_result = ([n for n, size in enumerate(sizes) if size > 1] for sizes in (shape, result))
    if [shape[n] for n in wide] != [result[n] for n in wide_result]:
        return None
    return dict(zip(wide_result, wide, strict=True))


def _selected(values: Sequence[float | None]) -> float | None:
    chosen, *cases = values
    if chosen is not None and 0 <= chosen < len(cases):
        return cases[int(chosen)]
    return cases[0] if all(case == cases[0] for case in cases) else None


def _computed(name: str, left: float | None, right: float | None) -> float | None:
    """The result of an operation on two numbers, either of which may be unknown; a masked score stays masked."""
    if left is not None and right is not None:
        with np.errstate(all="ignore"):
            result = float(_ARITHMETIC[name](left, right))
        return None if math.isnan(result) else result
    if name == "mul":
        return 0.0 if 0.0 in (left, right) else None
    terms = left, -right if name == "sub" and right is not None else right
    masked = name in ("add", "add_any", "sub") and any(term is not None and term < _MASKED for term in terms)
    return -math.inf if masked else None
