"""Functions that do the same, as they have the same code and close over the same values."""

from __future__ import annotations

import types
from collections.abc import Hashable
from typing import Any, final

__all__ = ["Alike"]

_PLAIN = (bool, int, float, complex, str, bytes, types.NoneType)


@final
class Alike:
    """Functions, alone or in tuples, as a key: equal to another one if its functions do the same.

    Two functions do if they have the same code, globals, defaults and values that they close over: plain ones, other
    such functions, or tuples of them. What else a function closes over, such as an array, may be changed, so that the
    function is like itself alone.
    """

    def __init__(self, functions: tuple[Any, ...]) -> None:
        self.all = functions
        self._key = tuple(map(_key, functions))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class _ItselfError(Exception):
    """Something is like itself alone."""


class _Itself:
    """The key of what is like itself alone; it is kept, so that nothing else gets its id."""

    def __init__(self, one: Any) -> None:
        self._one = one

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self._one is other._one

    def __hash__(self) -> int:
        return id(self._one)


def _key(one: Any) -> Hashable:
    try:
        return _inner(one)
    except (_ItselfError, RecursionError, ValueError):  # ValueError: a cell that is empty
        return _Itself(one)


def _inner(one: Any) -> Hashable:
    if isinstance(one, _PLAIN):
        return type(one), repr(one)  # 0.0 and -0.0 are equal, and so are 1 and True
    if isinstance(one, tuple):
        return type(one), tuple(map(_inner, one))
    if isinstance(one, types.FunctionType):
        cells = tuple(cell.cell_contents for cell in one.__closure__ or ())
        named = tuple((one.__kwdefaults__ or {}).items())
        return one.__code__, id(one.__globals__), _inner(cells), _inner(one.__defaults__ or ()), _inner(named)
    if isinstance(one, (type, types.ModuleType, types.BuiltinFunctionType)):
        return _Itself(one)
    raise _ItselfError
