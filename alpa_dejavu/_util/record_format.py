"""Formats of files that are declared on dataclasses: the type of their data, and the records that such data make.

Annotations may use what `alpa_dejavu._util.format_fields` has, imported for type checkers alone: pydantic takes a tenth
of a second, and is needed where a file is checked.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

_Record = TypeVar("_Record")


def data_type(record: type, more: Mapping[str, Any], instead: Mapping[type, Any] = types.MappingProxyType({})) -> Any:
    """Returns the declared type of a file's JSON data: a TypedDict of a dataclass's fields, in which dataclasses are
    TypedDicts, too, and tuples are lists.

    Args:
        record: the dataclass.
        more: the types of further keys, such as "version", by name.
        instead: the types that stand for other dataclasses in it.
    """
    from typing_extensions import TypedDict

    from alpa_dejavu._util.format_fields import file_format

    types_of = dict(instead)

    def of_record(kind: type, more: Mapping[str, Any]) -> Any:
        if kind not in types_of:
            fields = {name: of_hint(hint) for name, hint in _hints(kind).items()}
            types_of[kind] = TypedDict(f"{kind.__name__}Data", {**more, **fields})  # type: ignore[operator]
            types_of[kind].__doc__ = (kind.__doc__ or "").partition("\n\n")[0]
        return types_of[kind]

    def of_hint(hint: Any) -> Any:
        inside = typing.get_args(hint)
        if dataclasses.is_dataclass(hint):
            return of_record(typing.cast("type", hint), {})
        if typing.get_origin(hint) is Annotated:
            return Annotated.__class_getitem__((of_hint(inside[0]), *inside[1:]))
        if typing.get_origin(hint) is tuple:
            return list[of_hint(inside[0])]  # type: ignore[misc]
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            return functools.reduce(lambda a, b: a | b, map(of_hint, inside))
        return hint

    return file_format(of_record(record, more))


def record_of(kind: type[_Record], data: Mapping[str, Any]) -> _Record:
    """Returns the dataclass that data describe which were checked against `data_type`."""
    declared: Any = kind  # types can be keys of a cache, which mypy doesn't know of declared ones
    record: _Record = declared(**{name: _value(hint, data[name]) for name, hint in _hints(declared).items()})
    return record


def _value(hint: Any, value: Any) -> Any:
    while typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    if dataclasses.is_dataclass(hint):
        return record_of(typing.cast("type", hint), value)
    if typing.get_origin(hint) is tuple:
        return tuple(_value(typing.get_args(hint)[0], item) for item in value)
    return int(value) if hint is int else value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    from alpa_dejavu._util import format_fields

    names = {**vars(typing), **vars(format_fields), **vars(sys.modules[kind.__module__])}
    return typing.get_type_hints(kind, names, include_extras=True)
