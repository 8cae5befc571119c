"""Alpa's profiling database, which is a pickle, read without running anything that a pickle may name.

Whatever the file names is looked up in a table of stand-ins of ours, which only keep what they are given: neither Alpa
nor numpy takes part in making an object. What isn't in the table is refused by its name.
"""

from __future__ import annotations

import math
import pathlib
import pickle
import re
from collections.abc import Mapping
from typing import Any, final

import numpy as np

__all__ = ["Result", "read_alpa_database"]

_REMEDY = "give a file that Alpa's gen_prof_database.py wrote"


@final
class Result:
    """A stand-in for Alpa's `MeshProfilingResult` and `ProfilingResultDatabase` in a pickle: it keeps their attributes,
    by name.
    """

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise pickle.UnpicklingError(f"its object has a {type(state).__name__} in place of attributes")
        self.attributes = state


@final
class _Dtype:
    """Stands in for `numpy.dtype`."""

    def __init__(self, code: Any, _align: Any = False, _copy: Any = False) -> None:
        if not isinstance(code, str) or not re.fullmatch(r"[fiub][1248]", code):
            raise pickle.UnpicklingError(f"it holds arrays of {code!r}, where numbers are to be")
        self._code, self._order = code, "="

    def __setstate__(self, state: Any) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        if order not in ("<", ">", "=", "|"):
            raise pickle.UnpicklingError(f"it holds an array with the byte order {order!r}")
        self._order = order

    def numbers(self, data: Any) -> np.ndarray[Any, Any]:
        if not isinstance(data, bytes):
            raise pickle.UnpicklingError(f"it holds an array made of a {type(data).__name__}")
        return np.frombuffer(data, np.dtype(f"{self._order}{self._code}"))


@final
class _Array:
    """Stands in for `numpy.ndarray`."""

    def __init__(self, *_: Any) -> None:
        self.values: list[Any] = []

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, by_columns, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(shape, tuple):
            raise pickle.UnpicklingError("it holds an array of no known kind")
        numbers = dtype.numbers(data)
        if math.prod(shape) != len(numbers):
            raise pickle.UnpicklingError(f"it holds {len(numbers)} numbers as an array of shape {shape}")
        self.values = numbers.reshape(shape, order="F" if by_columns else "C").tolist()


@final
class _Named:
    """Stands in for what is only ever handed to another stand-in; it can't be called."""


def _scalar(dtype: Any, data: Any) -> Any:
    """Stands in for numpy's maker of scalars: gives Python's own number."""
    numbers = dtype.numbers(data).tolist() if isinstance(dtype, _Dtype) else []
    if len(numbers) != 1:
        raise pickle.UnpicklingError("it holds a number of no known kind")
    return numbers[0]


def _dictionary(*_: Any) -> dict[Any, Any]:
    """Stands in for `collections.defaultdict`."""
    return {}


def _encode(text: Any, coding: Any = "latin1") -> bytes:
    """Stands in for `_codecs.encode`, by which old protocols write bytes."""
    if not isinstance(text, str) or coding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it holds text of the coding {coding!r}")
    return text.encode("latin1")


_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_KNOWN: Mapping[tuple[str, str], Any] = {
    ("alpa.mesh_profiling", "MeshProfilingResult"): Result,
    ("alpa.mesh_profiling", "ProfilingResultDatabase"): Result,
    ("collections", "defaultdict"): _dictionary,
    ("builtins", "list"): _Named(),
    ("__builtin__", "list"): _Named(),
    ("_codecs", "encode"): _encode,
    ("numpy", "ndarray"): _Named(),
    ("numpy", "dtype"): _Dtype,
    **{(module, "_reconstruct"): _Array for module in _MULTIARRAY},
    **{(module, "scalar"): _scalar for module in _MULTIARRAY},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Returns the stand-in for a class or function that the pickle of a profiling database names; nothing is
        imported.
        """
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which no profiling database has, so nothing of it was run or read"
            )
        return _KNOWN[module, name]


def read_alpa_database(path: pathlib.Path) -> dict[Any, Any]:
    """Reads Alpa's profiling database, a pickle, without running code from it; returns its results by cluster and mesh
    shape.

    Raises:
        ValueError: the file can't be read, is cut off, isn't a pickle, or holds something else; says what.
    """
    try:
        with path.open("rb") as file:
            found = _Unpickler(file).load()
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror or error}; {_REMEDY}") from None
    except EOFError:
        raise ValueError(f"{path} is no whole pickle: it ends too early; copy it again, or {_REMEDY}") from None
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} is no profiling database of Alpa's: {error}; {_REMEDY}") from None
    except Exception as error:
        # A pickle that is damaged can fail in any way.
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is no profiling database of Alpa's: {said}; {_REMEDY}") from None
    if isinstance(found, Result):
        found = found.attributes.get("data")
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__} in place of results by mesh; {_REMEDY}")
    return found
