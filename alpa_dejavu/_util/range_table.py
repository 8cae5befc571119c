"""Arrays by ranges of layers that hold what alike ranges have in common once.

Most layers of a large model are alike, and so are the ranges of equally many of them: of a model of L such layers about
L kinds of ranges differ, of all L (L + 1) / 2.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jaxtyping import Int

    Kinds: TypeAlias = Int[NDArray[np.intp], "L L"]

_ALIKE = 1e-10
"""By so small a share values of alike ranges may differ: sums in another order do."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class RangeTable(NDArrayOperatorsMixin):
    """An array of shape (L, L, ...), whose entry [i, j] is about layers i..j, as the rows of R kinds of ranges.

    NumPy takes it for the array. Sums and the like of tables of the same kinds, numbers, and arrays that have at most
    the dimensions behind the ranges, are tables of these kinds again.

    Attributes:
        rows: what each kind of range has, shape (R, ...).
        of_range: the kind of each range, the same object in all tables of these kinds.

    >>> table = RangeTable(np.array([[1.0], [2.0]]), np.array([[0, 1], [0, 0]]))
    >>> table[0, 1, 0], (table + 1).rows.tolist(), np.asarray(table)[..., 0].tolist()
    (2.0, [[2.0], [3.0]], [[1.0, 2.0], [1.0, 1.0]])
    """

    rows: NDArray[Any]
    of_range: Kinds

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the shape (L, L, ...) of the array that the table stands for."""
        return (*self.of_range.shape, *self.rows.shape[1:])

    @property
    def ndim(self) -> int:
        """Returns the number of dimensions of that array."""
        return self.rows.ndim + 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the type of its entries."""
        return self.rows.dtype

    def __len__(self) -> int:
        return len(self.of_range)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.rows[self.of_range].astype(dtype or self.dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple) and len(key) > 1:
            ranges, behind = [isinstance(part, slice) for part in key[:2]], key[2:]
            if not any(ranges) and key[0] is not Ellipsis:
                entry = self.of_range[key[:2]], *behind
                return self.rows[entry]
            if all(ranges) and key[:2] == (slice(None), slice(None)):
                every = slice(None), *behind
                return RangeTable(self.rows[every], self.of_range)
        return np.asarray(self)[key]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        tables = [value for value in inputs if isinstance(value, RangeTable)]
        alike = bool(tables) and all(
            value.of_range is tables[0].of_range and value.ndim == tables[0].ndim
            if isinstance(value, RangeTable)
            else np.ndim(value) <= tables[0].ndim - 2
            for value in inputs
        )
        if alike and method == "__call__" and not options:
            rows = (value.rows if isinstance(value, RangeTable) else value for value in inputs)
            return RangeTable(ufunc(*rows), tables[0].of_range)
        whole = (np.asarray(value) if isinstance(value, RangeTable) else value for value in inputs)
        return getattr(ufunc, method)(*whole, **options)


RangeArray: TypeAlias = "NDArray[Any] | RangeTable"
"""An array of shape (L, L, ...), or the table that stands for one."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class RangeKinds:
    """The kinds of ranges that a number of arrays of shape (L, L) tell apart, with a range of each as its example.

    Those of no layers, j < i, are one kind.

    >>> work = np.array([[1.0, 3.0, 5.0], [0.0, 2.0, 4.0], [0.0, 0.0, 2.0]])
    >>> RangeKinds.of_lengths(3).split(work).of_range
    array([[1, 2, 3],
           [0, 4, 5],
           [0, 0, 4]])
    """

    of_range: Kinds
    examples: NDArray[np.intp]

    @classmethod
    def of(cls, numbers: NDArray[Any]) -> RangeKinds:
        """Returns the kinds of ranges that have the same of some numbers, shape (L, L)."""
        size = len(numbers)
        inside = np.where(np.triu(np.ones((size, size), dtype=np.bool_)), numbers - numbers.min() + 1, 0)
        _, examples, of_range = np.unique(inside, return_index=True, return_inverse=True)
        return cls(of_range.reshape(size, size), examples)

    @classmethod
    def of_lengths(cls, num_layers: int) -> RangeKinds:
        """Returns the kinds of ranges of equally many of so many layers."""
        return cls.of(np.arange(num_layers)[None, :] - np.arange(num_layers)[:, None])

    def __len__(self) -> int:
        return len(self.examples)

    def rows(self, values: NDArray[Any]) -> NDArray[Any]:
        """Returns the values of each kind's example, shape (..., R) for an array of shape (..., L, L)."""
        return values.reshape(*values.shape[:-2], -1)[..., self.examples]

    def split(self, values: NDArray[Any]) -> RangeKinds:
        """Returns the kinds of which all ranges have the same values, up to rounding; shape (..., L, L)."""
        size, kinds = len(self.of_range), self
        upper = np.flatnonzero(np.triu(np.ones((size, size), dtype=np.bool_)))
        flat = np.asarray(values, dtype=np.float64).reshape(-1, size * size)
        inside = flat[:, upper]
        while True:
            expected = flat[:, kinds.examples][:, kinds.of_range.ravel()[upper]]
            with np.errstate(invalid="ignore"):
                off = (np.abs(inside - expected) > _ALIKE * np.abs(expected)) & (inside != expected)
            if not (others := off.any(axis=0)).any():
                return kinds
            numbers = kinds.of_range.ravel().copy()
            numbers[upper[others]] += len(kinds)
            kinds = RangeKinds.of(numbers.reshape(size, size))

    def joined(self, numbers: NDArray[Any]) -> RangeKinds:
        """Returns the kinds of ranges that differ in some numbers, at least 0, too; shape (L, L)."""
        return RangeKinds.of(self.of_range * (int(numbers.max()) + 1) + numbers)

    def table(self, values: RangeArray) -> RangeTable:
        """Returns the table of these kinds for a table of kinds that are no finer, or for an array."""
        if isinstance(values, RangeTable):
            return RangeTable(values.rows[values.of_range.ravel()[self.examples]], self.of_range)
        return RangeTable(values.reshape(-1, *values.shape[2:])[self.examples], self.of_range)

    @property
    def firsts(self) -> NDArray[np.intp]:
        """Returns the first layer of each kind's example, shape (R,)."""
        return self.examples // len(self.of_range)

    @property
    def lasts(self) -> NDArray[np.intp]:
        """Returns the last layer of each kind's example, shape (R,)."""
        return self.examples % len(self.of_range)


def common_kinds(tables: Iterable[RangeArray], numbers: NDArray[Any] | None = None) -> RangeKinds:
    """Returns the kinds of ranges that some tables tell apart, and some numbers, shape (L, L), too; of arrays every
    range is a kind of its own.
    """
    of_tables = {id(kinds): kinds for kinds in (_kinds_in(values) for values in tables)}
    first, *others = [*of_tables.values(), *([] if numbers is None else [numbers])]
    kinds = RangeKinds.of(first)
    for other in others:
        kinds = kinds.joined(other)
    return kinds


def numbered(rows: NDArray[Any]) -> NDArray[np.int64]:
    """Returns a number for each row of an array, the same number for equal rows."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in rows], dtype=np.int64)


def _kinds_in(values: RangeArray) -> NDArray[Any]:
    return values.of_range if isinstance(values, RangeTable) else _every_range(len(values))


@functools.lru_cache(maxsize=8)
def _every_range(size: int) -> NDArray[np.intp]:
    return np.arange(size * size).reshape(size, size)
