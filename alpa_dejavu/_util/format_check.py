"""Checking data by a declared type (`_format_fields`): the first thing that is wrong, and what would be right."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError

from alpa_dejavu._util.format_fields import WrongDataError
from alpa_dejavu._util.json_text import Path
from alpa_dejavu._util.near_names import near

_Data = TypeVar("_Data")
_Place: TypeAlias = tuple[str | int, ...]
_Schema: TypeAlias = Mapping[str, Any]
_MOST_ERRORS = 10_000


def checked(data: Any, kind: type[_Data]) -> _Data:
    """Checks the data of a JSON file against a declared type, such as a TypedDict, and returns the data itself. A whole
    number may be written as 4.0. WrongDataError tells the first thing that is wrong, but of the key "version" before
    all.
    """
    # Types can be keys of a cache, which mypy doesn't know of declared ones.
    declared: Any = kind
    try:
        _adapter(declared).validate_python(data)
    except ValidationError as error:
        if error.error_count() > _MOST_ERRORS:
            raise WrongDataError((), f"the file has {error.error_count()} errors, so it is none of this kind") from None
        schema = json_schema(declared)
        wrong = [_explained(line, data, schema) for line in error.errors(include_url=False, include_input=False)]
        by_place = dict(reversed(wrong))
        where = ("version",) if ("version",) in by_place else _first(data, by_place)
        raise WrongDataError(where, by_place[where]) from None
    right: _Data = data
    return right


def json_schema(kind: Any) -> dict[str, Any]:
    """Returns the JSON Schema of a declared type, such as a TypedDict, without the schema's "title" keys."""
    schema: dict[str, Any] = _without_titles(_adapter(kind).json_schema())
    return schema


def key_name(where: Path) -> str:
    """Returns a place in a file's data, given by its keys and indices, as text for people.

    >>> key_name(("stages", 0, "layers"))
    'stages[0].layers'
    """
    parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in where)
    return "".join(parts).removeprefix(".") or "the file"


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_titles(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _without_titles(value) for key, value in schema.items() if key != "title"}


def _explained(error: Any, data: Any, schema: _Schema) -> tuple[_Place, str]:
    """The place of an error of pydantic's, and what is to be said."""
    missing, unknown = (error["type"] == kind for kind in ("missing", "extra_forbidden"))
    where, value, at = _located(error["loc"][:-1] if missing or unknown else error["loc"], data, schema)
    if missing:
        return where, f"{key_name(where)} lacks the key {error['loc'][-1]!r}"
    if unknown:
        key, keys = error["loc"][-1], _resolved(at, schema).get("properties", {})
        place = (*where, key)
        return place, f"{key_name(place)} is an unknown key{near(key, keys)} (known are {', '.join(keys)})"
    limits = error.get("ctx", {})
    more = f"; {limits['error']}" if "error" in limits else ""
    asked = at.get("description", "an object") if where else "an object"
    if "le" in limits:
        asked += f", and at most {limits['le']:g}"
    elif limits.get("ge", 0) > 0 and isinstance(value, float) and value > 0:
        asked += f", and at least {limits['ge']:g}"
    return where, f"{key_name(where)} is {_short(value)}, but must be {asked}{more}"


def _located(steps: Path, data: Any, schema: _Schema) -> tuple[_Place, Any, _Schema]:
    """The place that steps lead to, with what is there and its schema; among them are names of a union's members."""
    place: list[str | int] = []
    value, at = data, schema
    for step in steps:
        keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        if step in keys:
            place.append(step)
            value, at = value[step], _inside(at, step, schema)
    return tuple(place), value, at


def _inside(at: _Schema, step: str | int, root: _Schema) -> Any:
    for member in _members(at, root):
        inner = member.get("items") if isinstance(step, int) else member.get("properties", {}).get(step)
        rest = member.get("additionalProperties")
        if inner is None and isinstance(step, str) and isinstance(rest, Mapping):
            inner = rest
        if inner is not None:
            return inner
    return {}


def _members(at: _Schema, root: _Schema) -> Iterator[_Schema]:
    """Yields the schemas that a value may have: of a union each of its members."""
    for member in at.get("anyOf", [at]):
        yield _resolved(member, root)


def _resolved(at: _Schema, root: _Schema) -> _Schema:
    if "$ref" not in at:
        return at
    definition: _Schema = root["$defs"][at["$ref"].rpartition("/")[2]]
    return definition


def _first(data: Any, places: Collection[_Place]) -> _Place:
    """Returns the place that comes first in the data."""
    place: _Place = ()
    left = list(places)
    while place not in left:
        steps = {other[len(place)] for other in left}
        order = data if isinstance(data, dict) else range(len(data))
        step = next(step for step in order if step in steps)
        place, data = (*place, step), data[step]
        left = [other for other in left if other[: len(place)] == place]
    return place


def _short(value: Any) -> str:
    # A database's columns may hold bytes.
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."
