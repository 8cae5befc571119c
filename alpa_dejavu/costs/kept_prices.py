"""What stages of one model cost, kept by content from one question to the next, and from one process to the next.

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

if TYPE_CHECKING:
    from jaxtyping import Float


@final
class KeptPrices:
    """A store of figures of all ranges of a model's layers, by the text that they are asked for by.

    `changed` says whether figures were added since the store was made or read.
    """

    def __init__(self, num_layers: int) -> None:
        self.changed = False
        self._of_ranges = np.zeros((num_layers, num_layers), dtype=np.int32)  # the class of each range
        self._examples = np.zeros(1, dtype=np.int64)  # a range of each class
        self._columns: list[FloatArray] = []  # distinct figures of all classes
        self._numbers: dict[bytes, int] = {}
        self._rows: dict[str, list[int]] = {}  # the columns of each text

    def __contains__(self, text: str) -> bool:
        return text in self._rows

    def figures(self, text: str) -> Float[FloatArray, "figures L L"]:
        """Returns the figures of a text, as they were added; KeyError where there are none."""
        return np.stack([self._columns[n] for n in self._rows[text]])[:, self._of_ranges]

    def add(self, text: str, figures: Float[FloatArray, "figures L L"]) -> None:
        """Adds the figures of a text, for all ranges of layers i..j."""
        flat = figures.reshape(len(figures), -1)
        if (flat[:, self._examples][:, self._of_ranges.ravel()] != flat).any():
            self._tell_apart(flat)
        self._rows[text] = [self._number(column) for column in flat[:, self._examples]]
        self.changed = True

    def _number(self, column: FloatArray) -> int:
        number = self._numbers.setdefault(column.tobytes(), len(self._columns))
        if number == len(self._columns):
            self._columns.append(column.copy())
        return number

    def _tell_apart(self, figures: Float[FloatArray, "figures ranges"]) -> None:
        """Divides classes until all ranges of each have the same figures."""
        rows = np.concatenate([self._of_ranges.reshape(1, -1), figures])
        _, self._examples, inverse = np.unique(rows, axis=1, return_index=True, return_inverse=True)
        before = self._of_ranges.ravel()[self._examples]
        self._of_ranges = np.reshape(inverse, self._of_ranges.shape).astype(np.int32)
        self._columns = [column[before] for column in self._columns]
        self._numbers = {column.tobytes(): number for number, column in enumerate(self._columns)}

    def data(self) -> dict[str, Any]:
        """Returns the store as JSON's data."""
        columns = np.array(self._columns).reshape(len(self._columns), len(self._examples))
        return {"of_ranges": _packed(self._of_ranges), "columns": _packed(columns), "rows": self._rows}

    @classmethod
    def of(cls, data: Mapping[str, Any], num_layers: int) -> KeptPrices:
        """Returns the store that JSON's data of `data` describe; ValueError where they are broken."""
        kept = cls(num_layers)
        of_ranges, columns = _unpacked(data["of_ranges"], "<i4"), _unpacked(data["columns"], "<f8")
        classes, kept._examples = np.unique(of_ranges, return_index=True)
        rows = {str(text): list(map(int, numbers)) for text, numbers in data["rows"].items()}
        if (
            of_ranges.shape != kept._of_ranges.shape
            or (classes != np.arange(columns.shape[1])).any()
            or not np.isfinite(columns).all()
            or any(not 0 <= number < len(columns) for numbers in rows.values() for number in numbers)
        ):
            raise ValueError("its figures don't fit each other")
        kept._of_ranges, kept._columns, kept._rows = of_ranges.astype(np.int32), list(columns), rows
        kept._numbers = {column.tobytes(): number for number, column in enumerate(columns)}
        return kept


def _packed(array: NDArray[Any]) -> dict[str, Any]:
    content = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return {"shape": list(array.shape), "numbers": base64.b64encode(content).decode("ascii")}


def _unpacked(data: Mapping[str, Any], dtype: str) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(data["numbers"], validate=True), dtype=dtype).reshape(data["shape"])
