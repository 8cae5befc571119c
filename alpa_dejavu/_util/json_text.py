"""JSON text as files of users have it: read strictly, with the line of each key, and never deeper than is meant."""

from __future__ import annotations

import collections
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

Path: TypeAlias = Sequence[str | int]
_MOST_DIGITS = 300
_DEEPEST = 100
_BLANK = re.compile(r"[ \t\n\r]*")
_TOKEN = re.compile(
    r'(?P<text>"[^"\\]*(?:\\.[^"\\]*)*")(?P<key>[ \t\n\r]*:)?|[{}]'
    rf"|(?P<number>NaN|-?Infinity|-?\d[\d.]*[eE][-+]?\d+|-?\d[\d.]{{{_MOST_DIGITS - 1},}})",
    re.DOTALL,
)
"""Texts, the ends of objects, and the numbers that may be too large; all others are passed over."""


def strict_json(text: str, finite: bool = True) -> Any:
    """Returns the data of JSON text, in which no object may have a key twice and, unless `finite` is False, all numbers
    must be finite.

    Raises:
        ValueError: the text breaks these rules, nests lists more than 100 deep, or has half a character in a string;
            `json.JSONDecodeError`, where it isn't JSON.
    """
    try:
        data = json.loads(text, object_pairs_hook=_once_each, **(_PARSERS if finite else {}))
    except RecursionError:
        raise ValueError(f"lists in lists more than {_DEEPEST} deep") from None
    if _is_deep(data):
        raise ValueError(f"lists in lists more than {_DEEPEST} deep")
    if "\\ud" in text.lower():
        try:
            json.dumps(data, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"a text has {error.object[error.start]!r}, which is half a character") from None
    return data


def line_of(text: str, where: Path) -> int | None:
    r"""Returns the line, counted from 1, of a key or element of JSON text, whose place is given by keys and indices.

    It is None where that can't be told, and the line of the nearest outer key where there is no such place.

    >>> line_of('{\n"a": [\n1,\n2]}', ("a", 1))
    4
    """
    place = value = _past_blanks(text, 0)
    try:
        for step in where:
            # The first of two alike keys is meant.
            entry = next(((start, inside) for key, start, inside in _entries(text, value) if key == step), None)
            if entry is None:
                break
            place, value = entry
    except (ValueError, IndexError, RecursionError):
        return None
    return text.count("\n", 0, place) + 1


def line_of_no_json(text: str) -> int:
    r"""Returns the line, counted from 1, of the first error in JSON text: a key that an object has twice, or a number
    or half a character that JSON hasn't; 1 if unknown.

    >>> line_of_no_json('{"a": 1,\n"b": [2, NaN]}')
    2
    """
    return text.count("\n", 0, _place_of_no_json(text)) + 1


def _place_of_no_json(text: str) -> int:
    """Goes through the text once: it may be large, and what is wrong in it deep inside."""
    objects: list[tuple[dict[str, int], list[int]]] = []  # the keys of each that is open, and those that came again
    for token in _TOKEN.finditer(text):
        if token["number"]:
            try:
                json.loads(token["number"], **_PARSERS)
            except ValueError:
                return token.start()
        elif token["text"]:
            value = json.loads(token["text"], strict=False) if "\\" in token["text"] else token["text"][1:-1]
            if any("\ud800" <= character <= "\udfff" for character in value):
                return token.start()
            if token["key"] and objects:
                places, again = objects[-1]
                if places.setdefault(value, token.start()) != token.start():
                    again.append(places[value])
        elif token[0] == "{":
            objects.append(({}, []))
        elif objects and (again := objects.pop()[1]):
            return again[0]
    return 0


def _entries(text: str, position: int) -> Iterator[tuple[str | int, int, int]]:
    """Keys of the object, or numbers of the elements of the list, at a position; where each and its value begins."""
    if text[position] not in "{[":
        return
    closing = "}" if text[position] == "{" else "]"
    start, count = _past_blanks(text, position + 1), 0
    while text[start] != closing:
        key: str | int = count
        value = start
        if closing == "}":
            key, end = _LENIENT.raw_decode(text, start)
            value = _past_blanks(text, _past_blanks(text, end) + 1)
        yield key, start, value
        _, end = _LENIENT.raw_decode(text, value)
        end = _past_blanks(text, end)
        start = _past_blanks(text, end + 1) if text[end] == "," else end
        count += 1


def _past_blanks(text: str, position: int) -> int:
    blanks = _BLANK.match(text, position)
    return blanks.end() if blanks else position


def _is_deep(data: Any) -> bool:
    """Whether lists and objects are more than `_DEEPEST` deep in one another."""
    level: list[Any] = [[data]]
    for _ in range(_DEEPEST + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        counts = collections.Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"the key {twice!r} is there twice in one object")
    return data


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large a number")
    return value


def _small_enough(text: str) -> int:
    value = int(text) if len(text) < _MOST_DIGITS else None
    if value is None:
        raise ValueError(f"{text[:12]}... ({len(text)} digits) is too large a number")
    return value


_PARSERS: dict[str, Any] = {"parse_constant": _no_number, "parse_float": _finite, "parse_int": _small_enough}
_LENIENT = json.JSONDecoder(parse_int=str, parse_float=str)
