"""JSON text that is short, and the same wherever it is written: numbers with nine digits, lists of them in lines."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping
from typing import Any

_DIGITS = 9
"""Significant ones: more differ between processors."""
_WIDTH = 120


def json_text(value: Any) -> str:
    """Returns a value as JSON, an object's keys in lines of their own, lists of scalars folded; ValueError says where a
    number isn't finite, or something isn't of JSON's types.

    >>> print(json_text({"ends": [1 / 3, 2], "name": "a b"}), end="")
    {
     "ends": [0.333333333, 2],
     "name": "a b"
    }
    """
    return _text(value, "", "") + "\n"


def _text(value: Any, indent: str, where: str) -> str:
    deeper = f"{indent} "
    if isinstance(value, Mapping):
        items = [f"{json.dumps(key)}: {_text(item, deeper, f'{where}.{key}')}" for key, item in value.items()]
        return _lines("{", items, "}", indent)
    if not isinstance(value, (list, tuple)):
        return _scalar(value, where)
    if any(isinstance(item, (Mapping, list, tuple)) for item in value):
        return _lines("[", [_text(item, deeper, f"{where}[{n}]") for n, item in enumerate(value)], "]", indent)
    items = [_scalar(item, f"{where}[{n}]") for n, item in enumerate(value)]
    line = f"[{', '.join(items)}]"
    if len(line) <= _WIDTH or any(isinstance(item, str) for item in value):
        return line if len(line) <= _WIDTH else _lines("[", items, "]", indent)
    # A number such as 1e-05 stays in one piece.
    folded = textwrap.wrap(line, _WIDTH, subsequent_indent=deeper, break_long_words=False, break_on_hyphens=False)
    return "\n".join(folded)


def _lines(opening: str, items: list[str], closing: str, indent: str) -> str:
    if not items:
        return opening + closing
    joined = f",\n{indent} ".join(items)
    return f"{opening}\n{indent} {joined}\n{indent}{closing}"


def _scalar(value: Any, where: str) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where.lstrip('.')} is {value!r}, which no calibration may hold; fit it again")
        return json.dumps(float(f"{value:.{_DIGITS}g}"))
    if value is None or isinstance(value, (bool, int, str)):
        return json.dumps(value)
    raise ValueError(f"{where.lstrip('.')} is {value!r}, but must be text or a number")
