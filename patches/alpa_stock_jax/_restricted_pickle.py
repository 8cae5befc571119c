"""Alpa's own files of measurements, read without running what else a file may name.

Nor may a few bytes take all memory, as a number of the table of what was met, or hash without an end, as tuples do that
hold the one before them twice.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Sequence
from typing import Any, BinaryIO, ClassVar

import numpy as np

__all__ = ["NUMPY_CLASSES", "read"]

NUMPY_CLASSES = frozenset(
    {
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
    }
)


_PYTHONS: Any = pickle._Unpickler
_DEEPEST = 100
_HASHED, _HASHED_OF_BYTE = 1_000_000, 8
"""So many elements of tuples may be hashed as keys, besides so many for each byte of the file."""


class _RestrictedUnpickler(_PYTHONS):
    """Python's own unpickler: its table of what was met isn't as long as a file says, and Ctrl-C ends it."""

    dispatch: ClassVar[dict[int, Any]] = dict(_PYTHONS.dispatch)

    def __init__(self, stream: io.BytesIO, allowed: Collection[tuple[str, str]]) -> None:
        super().__init__(stream)
        self._allowed = allowed
        self._left = _HASHED + _HASHED_OF_BYTE * len(stream.getvalue())

    def _check_keys(self, keys: Sequence[Any]) -> None:
        level = [one for one in keys if isinstance(one, tuple)]
        for _ in range(_DEEPEST):
            self._left -= sum(map(len, level))
            if self._left < 0 or not level:
                break
            level = [inner for one in level for inner in one if isinstance(inner, tuple)]
        if self._left < 0 or level:
            raise pickle.UnpicklingError("its keys are tuples in tuples without an end; measure and save anew")

    def _set_item(self) -> None:
        self._check_keys(self.stack[-2:-1])
        _PYTHONS.load_setitem(self)

    def _set_items(self) -> None:
        self._check_keys(self.stack[::2])
        _PYTHONS.load_setitems(self)

    def _dictionary(self) -> None:
        self._check_keys(self.stack[::2])
        _PYTHONS.load_dict(self)

    def _refused(self) -> None:
        raise pickle.UnpicklingError("the file holds what no file of measurements has; measure and save anew")

    dispatch |= {pickle.SETITEM[0]: _set_item, pickle.SETITEMS[0]: _set_items, pickle.DICT[0]: _dictionary}
    dispatch |= dict.fromkeys((pickle.ADDITEMS[0], pickle.FROZENSET[0], pickle.BYTEARRAY8[0]), _refused)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(
                f"the file holds {module}.{name}, which no file of measurements has; measure and save anew"
            )
        return super().find_class(module, name)


def read(file: BinaryIO, allowed: Collection[tuple[str, str]]) -> Any:
    """What `pickle.dump` or `numpy.save` (of one object) wrote.

    Args:
        file: open for reading bytes.
        allowed: module and name of every class that may be made, besides Python's builtin containers and numbers.

    Raises:
        pickle.UnpicklingError: the file names another class.
    """
    stream = io.BytesIO(file.read())
    if stream.getvalue().startswith(np.lib.format.MAGIC_PREFIX):
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            np.lib.format.read_array_header_1_0(stream)
        else:
            np.lib.format.read_array_header_2_0(stream)
    found = _RestrictedUnpickler(stream, allowed).load()
    if isinstance(found, np.ndarray) and found.shape == () and found.dtype == object:
        found = found.item()
    return found
