"""Alpa's own files of measurements, read without running what else a file may name."""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection
from typing import Any, BinaryIO

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


class _RestrictedUnpickler(pickle.Unpickler):
    def __init__(self, stream: BinaryIO, allowed: Collection[tuple[str, str]]) -> None:
        super().__init__(stream)
        self._allowed = allowed

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
