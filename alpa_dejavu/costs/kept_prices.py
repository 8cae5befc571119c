"""Prices of the stages of one model, kept by content from one question to the next, and from one process to the next.

Seconds and bytes of a stage depend on the model, the cost models, the devices that the stage is on with the links
between them, and its config; not on the batch, on how many hosts there are, what they cost, or the memory margin. Where
layers are alike, so are ranges of them: the same seconds and bytes come again and again, and are stored once.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu._util.range_table import RangeKinds

if TYPE_CHECKING:
    from jaxtyping import Float


@final
class KeptPrices:
    """A store of figures of all ranges of a model's layers, by the text that they are asked for by.

    `kinds` are those of ranges that figures tell apart so far, and `changed` says whether figures were added since the
    store was made or read.
    """

    def __init__(self, num_layers: int) -> None:
        self.changed = False
        self.kinds = RangeKinds.of_lengths(num_layers)
        self._columns: list[FloatArray] = []  # distinct figures of all kinds of ranges
        self._numbers: dict[bytes, int] = {}
        self._rows: dict[str, list[int]] = {}  # the columns of each text

    def __contains__(self, text: str) -> bool:
        return text in self._rows

    def rows(self, text: str) -> Float[FloatArray, "figures R"]:
        """Returns the figures of a text by kinds of ranges; KeyError where there are none."""
        return np.array([self._columns[n] for n in self._rows[text]])

    def figures(self, text: str) -> Float[FloatArray, "figures L L"]:
        """Returns the figures of a text, as they were added; KeyError where there are none."""
        return self.rows(text)[:, self.kinds.of_range]

    def add(self, text: str, figures: Float[FloatArray, "figures L L"]) -> None:
        """Adds the figures of a text, for all ranges of layers i..j."""
        kinds = self.kinds.split(figures)
        if kinds is not self.kinds:
            before = self.kinds.of_range.ravel()[kinds.examples]
            self._columns, self.kinds = [column[before] for column in self._columns], kinds
            self._numbers = {column.tobytes(): number for number, column in enumerate(self._columns)}
        self._rows[text] = [self._number(column) for column in kinds.rows(figures)]
        self.changed = True

    def _number(self, column: FloatArray) -> int:
        number = self._numbers.setdefault(column.tobytes(), len(self._columns))
        if number == len(self._columns):
            self._columns.append(column.copy())
        return number

    def data(self) -> dict[str, Any]:
        """Returns the store as JSON's data."""
        columns, of_ranges = np.array(self._columns).reshape(-1, len(self.kinds)), self.kinds.of_range
        return {"of_ranges": _packed(of_ranges.astype(np.int32)), "columns": _packed(columns), "rows": self._rows}

    @classmethod
    def of(cls, data: Mapping[str, Any], num_layers: int) -> KeptPrices:
        """Returns the store that JSON's data of `data` describe; ValueError where they are broken."""
        kept = cls(num_layers)
        of_ranges, columns = _unpacked(data["of_ranges"], "<i4"), _unpacked(data["columns"], "<f8")
        rows = {str(text): list(map(int, numbers)) for text, numbers in data["rows"].items()}
        if (
            of_ranges.shape != (num_layers, num_layers)
            or len(kinds := RangeKinds.of(of_ranges)) != columns.shape[1]
            or (kinds.of_range != of_ranges).any()
            or not np.isfinite(columns).all()
            or any(not 0 <= number < len(columns) for numbers in rows.values() for number in numbers)
        ):
            raise ValueError("its figures don't fit each other")
        kept.kinds, kept._columns, kept._rows = kinds, list(columns), rows
        kept._numbers = {column.tobytes(): number for number, column in enumerate(columns)}
        return kept


def _packed(array: NDArray[Any]) -> dict[str, Any]:
    content = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return {"shape": list(array.shape), "numbers": base64.b64encode(content).decode("ascii")}


def _unpacked(data: Mapping[str, Any], dtype: str) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(data["numbers"], validate=True), dtype=dtype).reshape(data["shape"])
