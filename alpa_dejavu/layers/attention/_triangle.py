"""Whether a mask is causal: whether scores are masked where their key is behind their query.

Masks of long sequences are large, so they are read at some places alone, as far as they hang on no data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
from jax import dtypes
from numpy.typing import NDArray

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers._jaxprs import shape_of
from alpa_dejavu.layers.attention._equations import Equations
from alpa_dejavu.layers.attention._labels import RESHAPES
from alpa_dejavu.layers.features.operator_kinds import SAME

Numbers = NDArray[np.float64]
Index = NDArray[np.int64]
"""The places of some elements of an array, shape (dimensions, places)."""
_MASKED = -1000.0
"""A score below this is masked: its exponential is 0."""
_ROWS = 64
"""So many rows are looked at, or all if there are fewer."""
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal, "lt": np.less, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum,
    "min": np.minimum, **_COMPARISONS,
}  # fmt: skip


def masks_beyond(equations: Equations, scores: core.Var, row: int, column: int, shift: int) -> bool:
    """Returns whether scores are masked where their index along one dimension, `column`, is beyond that along another,
    `row`, by more than a shift.
    """
    shape = shape_of(scores)
    rows = sorted({round(r) for r in np.linspace(0, shape[row] - 1, _ROWS)})
    pairs = [(r, c) for r in rows for c in (r + shift + 1, r + shift + 2, shape[column] - 1)]
    pairs = [(r, c) for r, c in pairs if r + shift < c < shape[column]]
    index = np.zeros((len(shape), len(pairs)), dtype=np.int64)
    index[:, 1::2] = np.array(shape)[:, None] - 1  # along all other dimensions the first and the last
    index[[row, column]] = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return bool(pairs) and bool((_MaskReader(equations).numbers(scores, index) < _MASKED).all())


@final
class _MaskReader:
    """A reader of the numbers that arrays have at some places; NaN where they aren't known."""

    def __init__(self, equations: Equations) -> None:
        self._equations = equations
        self._numbers: dict[tuple[core.Var, bytes], Numbers] = {}

    def numbers(self, atom: core.Atom, index: Index) -> Numbers:
        """Returns the numbers at each place of an index."""
        if isinstance(atom, core.Literal):
            return _picked(atom.val, index)
        key = atom, index.tobytes()
        if key not in self._numbers:
            equation = self._equations.maker(atom)
            self._numbers[key] = (
                _picked(self._equations.values.get(atom), index) if equation is None else self._result(equation, index)
            )
        return self._numbers[key]

    def _result(self, equation: core.JaxprEqn, index: Index) -> Numbers:
        name = equation.primitive.name
        if name == "iota":
            return index[equation.params["dimension"]].astype(np.float64)
        source = _source(equation, index)
        if source is not None:
            return self.numbers(equation.invars[0], source)
        if name not in (*_ARITHMETIC, "select_n", "and", "or", "not", "neg"):
            return _unknown(index)
        # A number has no dimensions.
        values = [self.numbers(atom, index[: len(shape_of(atom))]) for atom in equation.invars]
        with np.errstate(all="ignore"):
            return _computed(name, values)


def _unknown(index: Index) -> Numbers:
    return np.full(index.shape[1], np.nan)


def _picked(array: Any, index: Index) -> Numbers:
    """The elements of an array at the places of an index."""
    kind = getattr(array, "dtype", np.dtype(type(array)))
    if array is None or not any(dtypes.issubdtype(kind, of) for of in (np.number, np.bool_)):
        return _unknown(index)
    return np.broadcast_to(np.asarray(array)[tuple(index)], index.shape[1:]).astype(np.float64)


def _source(equation: core.JaxprEqn, index: Index) -> Index | None:
    """The places of a moved array's elements in what it is moved from; None if the equation does more than move."""
    name, params, shape = equation.primitive.name, equation.params, shape_of(equation.invars[0])
    if name in SAME or name == "reduce_precision":
        return index
    if name == "broadcast_in_dim":
        return index[list(params["broadcast_dimensions"])] * (np.array(shape, dtype=np.int64) > 1)[:, None]
    if name == "transpose":
        return index[np.argsort(params["permutation"])]
    if name == "slice":
        strides = params["strides"] or [1] * len(shape)
        return np.array(params["start_indices"])[:, None] + index * np.array(strides)[:, None]
    if name not in RESHAPES:
        return None
    result = shape_of(equation.outvars[0])
    flat = np.ravel_multi_index(tuple(index), result) if result else np.zeros(index.shape[1], dtype=np.int64)
    return np.array(np.unravel_index(flat, shape), dtype=np.int64).reshape(len(shape), -1)


def _computed(name: str, values: Sequence[Numbers]) -> Numbers:
    """The results of an operation on numbers, some of which aren't known; a masked score stays masked."""
    first, *others = values
    if name == "neg":
        return -first
    is_known = ~np.isnan(first)
    if name == "not":
        return np.where(is_known, first == 0, np.nan)
    if name == "select_n":
        alike = np.all([other == others[0] for other in others], axis=0)
        chosen = np.array(others)[np.where(is_known, first, 0).astype(np.int64), np.arange(len(first))]
        return np.where(is_known, chosen, np.where(alike, others[0], np.nan))
    (second,) = others
    if name in ("and", "or"):
        decisive = float(name == "or")
        either = (first == decisive) | (second == decisive)
        return np.where(either, decisive, np.where(first == second, first, np.nan))
    result = np.where(is_known & ~np.isnan(second), _ARITHMETIC[name](first, second), np.nan)
    if name == "mul":
        return np.where((first == 0) | (second == 0), 0.0, result)
    if name in ("add", "add_any", "sub"):
        masked = (first < _MASKED) | ((-second if name == "sub" else second) < _MASKED)
        return np.where(np.isnan(result) & masked, -np.inf, result)
    return result
