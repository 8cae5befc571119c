"""Fitted models as JSON's types, and back: what a file lacks or has wrong is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

State: TypeAlias = dict[str, Any]
"""Texts, numbers, lists and such dicts: what `json` writes as it is."""

_LARGEST = 1e300


def part(state: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object inside.

    Raises:
        ValueError: it isn't there, or isn't one.
    """
    value = _there(state, key)
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} is {_short(value)}, but must be an object")
    return value


def number(state: Mapping[str, Any], key: str) -> float:
    """A finite number.

    Raises:
        ValueError: it isn't there, or isn't one.
    """
    return _finite(_there(state, key), key)


def numbers(state: Mapping[str, Any], key: str, count: int | None = None) -> NDArray[np.float64]:
    """Finite numbers, of shape (count,).

    Raises:
        ValueError: they aren't there, aren't so many, or something among them is no finite number.

    >>> numbers({"ends": [0.0, None]}, "ends", 2)
    Traceback (most recent call last):
    ValueError: ends[1] is None, but must be a finite number
    """
    value = _there(state, key)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"{key} is {_short(value)}, but must be a list of numbers")
    if count is not None and len(value) != count:
        raise ValueError(f"{key} has {len(value)} numbers, but must have {count}")
    return np.array([_finite(each, f"{key}[{place}]") for place, each in enumerate(value)], dtype=np.float64)


def interval(state: Mapping[str, Any], key: str) -> NDArray[np.float64]:
    """The ends of an interval, the lower one first, of shape (2,).

    Raises:
        ValueError: they aren't there, or aren't so.
    """
    found = numbers(state, key, 2)
    if found[0] > found[1]:
        raise ValueError(f"{key} is from {found[0]:g} to {found[1]:g}, but the lower end must come first")
    return found


def places(state: Mapping[str, Any], key: str, count: int | None = None) -> NDArray[np.int64]:
    """Whole numbers of at least 0, of shape (count,).

    Raises:
        ValueError: they aren't there, aren't so many, or something among them is another number.
    """
    values = numbers(state, key, count)
    wrong = np.flatnonzero((values < 0) | (values != np.floor(values)))
    if len(wrong):
        raise ValueError(f"{key}[{wrong[0]}] is {values[wrong[0]]:g}, but must be a whole number of at least 0")
    return values.astype(np.int64)


def texts(state: Mapping[str, Any], key: str) -> list[str]:
    """Texts.

    Raises:
        ValueError: they aren't there, or something among them is none.
    """
    value = _there(state, key)
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{key} is {_short(value)}, but must be a list of texts")
    return list(value)


def _finite(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST:
        raise ValueError(f"{name} is {_short(value)}, but must be a finite number")
    return float(value)


def _there(state: Mapping[str, Any], key: str) -> Any:
    if key not in state:
        raise ValueError(f"the key {key!r} is missing")
    return state[key]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
