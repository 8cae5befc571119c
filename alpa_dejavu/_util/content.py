"""Digests of values by their content, by which what follows from them is found again in another process."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np


def content_digest(*values: Any) -> str:
    """Returns a digest of values by their content: numbers, texts and arrays, and sequences, sets, mappings and
    dataclasses of these, of which the class and the fields that tell two of it apart count.

    Raises:
        TypeError: a value is none of these, so that its content isn't known.

    >>> content_digest({"b": 1.0, "a": (2,)}) == content_digest({"a": [2], "b": 1.0})
    True
    """
    return hashlib.sha256(_text(values).encode()).hexdigest()


def _text(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, (tuple, list)):
        return f"({','.join(map(_text, value))})"
    if isinstance(value, AbstractSet):
        return f"{{{','.join(sorted(map(_text, value)))}}}"
    if isinstance(value, Mapping):
        return f"{{{','.join(sorted(f'{_text(key)}:{_text(entry)}' for key, entry in value.items()))}}}"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.dtype.str}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value) if field.compare]
        return f"{type(value).__module__}.{type(value).__qualname__}{_text(fields)}"
    raise TypeError(f"the content of {type(value).__name__} isn't known")
