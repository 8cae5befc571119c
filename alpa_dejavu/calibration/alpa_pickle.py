"""Alpa's profiling database, which is a pickle, read without running anything that a pickle may name.

Whatever the file names is looked up in a table of stand-ins of ours, which only keep what they are given: neither Alpa
nor numpy takes part in making an object. What isn't in the table is refused by its name. A few bytes of a pickle may
stand for endless work, as where each tuple holds the one before it twice: that is counted, and ends.
"""

from __future__ import annotations

import io
import math
import pathlib
import pickle
import re
from collections.abc import Mapping
from typing import Any, ClassVar, final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.file_size import VARIABLE, most_bytes

_REMEDY = "give a file that Alpa's gen_prof_database.py wrote"
_MOST_MIB = 8.0
_WORK, _WORK_OF_BYTE = 1_000_000, 8
"""So many objects may be looked at, besides so many for each byte of the file: each as often as it is in another."""
_DEEPEST = 100
_PYTHONS: Any = pickle._Unpickler


@final
class Result:
    """Stands in for Alpa's `MeshProfilingResult` and `ProfilingResultDatabase`: it keeps their attributes, by name."""

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
        self.numbers: np.ndarray[Any, Any] = np.zeros(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, by_columns, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(shape, tuple):
            raise pickle.UnpicklingError("it holds an array of no known kind")
        numbers = dtype.numbers(data)
        if math.prod(shape) != len(numbers):
            raise pickle.UnpicklingError(f"it holds {len(numbers)} numbers as an array of shape {shape}")
        self.numbers = numbers.reshape(shape, order="F" if by_columns else "C")


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


class _Unpickler(_PYTHONS):
    """Python's own unpickler, whose tables aren't as long as a file says, and which is interrupted by Ctrl-C."""

    dispatch: ClassVar[dict[int, Any]] = dict(_PYTHONS.dispatch)

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._left = _WORK + _WORK_OF_BYTE * len(content)

    def bounded(self, read: Any) -> Any:
        """Returns an object after looking at all in it; UnpicklingError where that is without an end, or too deep."""
        level = [read]
        for _ in range(_DEEPEST):
            inner: list[Any] = []
            for inside in level:
                self._charge(len(inside) if isinstance(inside, (tuple, list, dict)) else getattr(inside, "size", 1))
                if isinstance(inside, (tuple, list)):
                    inner += inside
                elif isinstance(inside, dict):
                    inner += [*inside, *inside.values()]
                elif isinstance(inside, (Result, _Array)):
                    inner.append(inside.attributes if isinstance(inside, Result) else inside.numbers)
            if not inner:
                return read
            level = inner
        raise pickle.UnpicklingError(f"it holds tuples in tuples more than {_DEEPEST} deep")

    def _charge(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise pickle.UnpicklingError("it holds far more than its size, by naming the same again and again")

    def _dictionary_of(self, items: list[Any]) -> None:
        for key in items[::2]:
            self.bounded(key)  # before it is hashed

    def _set_item(self) -> None:
        self._dictionary_of(self.stack[-2:])
        _PYTHONS.load_setitem(self)

    def _set_items(self) -> None:
        self._dictionary_of(self.stack)
        _PYTHONS.load_setitems(self)

    def _dictionary(self) -> None:
        self._dictionary_of(self.stack)
        _PYTHONS.load_dict(self)

    def _reduce(self) -> None:
        """Calls a stand-in; old protocols write bytes as text, which is made anew by each call."""
        self._charge(sum(len(text) for text in self.stack[-1] if isinstance(text, str)))
        _PYTHONS.load_reduce(self)

    def _build(self) -> None:
        if not isinstance(self.stack[-2], (Result, _Dtype, _Array)):
            raise pickle.UnpicklingError("it gives attributes to what has none")
        _PYTHONS.load_build(self)

    def _refused(self) -> None:
        raise pickle.UnpicklingError("it holds what no profiling database has")

    dispatch |= {pickle.SETITEM[0]: _set_item, pickle.SETITEMS[0]: _set_items, pickle.DICT[0]: _dictionary}
    dispatch |= {pickle.REDUCE[0]: _reduce, pickle.BUILD[0]: _build}
    dispatch |= dict.fromkeys((code[0] for code in (
        pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.BYTEARRAY8, pickle.INST, pickle.OBJ, pickle.DUP,
        pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.PERSID, pickle.BINPERSID,
    )), _refused)  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        """Returns the stand-in for a class or function that the pickle names; nothing is imported."""
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which no profiling database has, so nothing of it was run or read"
            )
        return _KNOWN[module, name]


def read_alpa_database(path: pathlib.Path) -> dict[Any, Any]:
    """Reads Alpa's database, a pickle, without running code; returns its results by cluster and mesh shape. ValueError
    says what is wrong.
    """
    try:
        with path.open("rb") as file:
            content = file.read(int(most_bytes(_MOST_MIB)) + 1)
        if len(content) > (most := most_bytes(_MOST_MIB)):
            reason = f"it is larger than {units.size(most)}, which is more than is read; set {VARIABLE} to more"
            raise pickle.UnpicklingError(f"{reason}, if it is meant")
        unpickler = _Unpickler(content)
        results = unpickler.bounded(unpickler.load())
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror or error}; {_REMEDY}") from None
    except EOFError:
        raise ValueError(f"{path} is no whole pickle: it ends too early; copy it again, or {_REMEDY}") from None
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} is no profiling database of Alpa's: {error}; {_REMEDY}") from None
    except Exception as error:
        # A pickle that is damaged can fail in any way, which tells the user nothing.
        raise ValueError(f"{path} is no profiling database of Alpa's, or a damaged one; {_REMEDY}") from error
    if isinstance(results, Result):
        results = results.attributes.get("data")
    if not isinstance(results, dict):
        raise ValueError(f"{path} holds a {type(results).__name__} in place of results by mesh; {_REMEDY}")
    return results
