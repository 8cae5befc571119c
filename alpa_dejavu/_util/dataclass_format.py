"""Dataclasses as files have them: the annotations of a field say its key, what its value must be, and when it is there.

From them follow the type that a file's data is checked by (`typed_dict_of`), writing (`data_of`) and reading
(`object_of`). A field without a default has to be in a file; one with a default may be left out of it, and is written
unless it is `Rare`. A field with `init=False`, which follows from the others, is written, and has to be there.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, final

from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util.format_fields import Asked, WrongDataError, file_format, listed

_Kind = TypeVar("_Kind")


class _Mark(enum.Enum):
    RARE, NEEDED, INLINE, ELSEWHERE = range(4)


Rare: TypeAlias = Annotated[_Kind, _Mark.RARE]
"""A field that isn't written where it has its default; if that is None, a file doesn't have null either."""
Needed: TypeAlias = Annotated[_Kind, _Mark.NEEDED]
"""A field that a file must have although it has a default."""
Inline: TypeAlias = Annotated[_Kind, _Mark.INLINE]
"""A dataclass whose keys stand among those of the object that it is in."""
Elsewhere: TypeAlias = Annotated[_Kind, _Mark.ELSEWHERE]
"""A field with which this module has nothing to do."""


@final
@dataclasses.dataclass(frozen=True)
class Key:
    """A part of an `Annotated` type that says which key a field has in files, if that isn't its name."""

    name: str


@final
@dataclasses.dataclass(frozen=True)
class Stored:
    """A part of an `Annotated` type that says as what a file has the field's value.

    Attributes:
        kind: the type that the file has; a value of `Any` is read as it is there.
        write, read: functions from the field's value to one of that type, and back; not lambdas within an annotation,
            which don't see the names of their module.
    """

    kind: Any
    write: Callable[[Any], Any] = lambda value: value
    read: Callable[[Any], Any] = lambda value: value


def chosen(choices: Iterable[str | int]) -> Stored:
    """Returns what says that a field's value is one of these."""
    return Stored(Literal[tuple(choices)])


@final
@dataclasses.dataclass(frozen=True)
class _FileField:
    """A field of a dataclass, with what its annotation says of files."""

    name: str
    key: str
    kind: Any
    default: Any
    computed: bool
    marks: frozenset[_Mark]

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING or _Mark.NEEDED in self.marks


@functools.cache
def _fields(kind: Any) -> tuple[_FileField, ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = []
    for field in dataclasses.fields(kind):
        metadata = getattr(hints[field.name], "__metadata__", ())
        marks = frozenset(mark for mark in metadata if isinstance(mark, _Mark))
        if _Mark.ELSEWHERE in marks:
            continue
        key = next((mark.name for mark in metadata if isinstance(mark, Key)), field.name)
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        fields.append(_FileField(field.name, key, hints[field.name], default, not field.init, marks))
    return tuple(fields)


def data_of(value: Any) -> dict[str, Any]:
    """Returns a dataclass's value as the JSON data of a file."""
    data: dict[str, Any] = {}
    kind: Any = type(value)
    for field in _fields(kind):
        own = getattr(value, field.name)
        if _Mark.RARE in field.marks and own == field.default:
            continue
        written = _written(field.kind, own)
        data |= written if _Mark.INLINE in field.marks else {field.key: written}
    return data


def object_of(kind: type[_Kind], data: Mapping[str, Any], **others: Any) -> _Kind:
    """Returns the dataclass's value that the JSON data of a file describe; `others` are fields that aren't in it. A
    dataclass's own ValueError is the only check; it is a `WrongDataError` where that dataclass is inside of this one.
    """
    declared: Any = kind
    for field in _fields(declared):
        if _Mark.INLINE in field.marks:
            others[field.name] = _read(field.kind, data)
        elif field.key in data and not field.computed:
            others[field.name] = _read_at(field.key, field.kind, data[field.key])
    return kind(**others)


def typed_dict_of(kind: type[Any], before: Mapping[str, Any] | None = None, **after: Any) -> Any:
    """Returns the `TypedDict` that the JSON data of a dataclass is checked by, with further keys around the fields'."""
    declared: Any = TypedDict(kind.__name__, {**(before or {}), **keys_of(kind), **after})  # type: ignore[misc]
    declared.__doc__ = (kind.__doc__ or "").partition("\n\n")[0]
    return file_format(declared)


_nested = functools.cache(typed_dict_of)


def keys_of(kind: Any) -> dict[str, Any]:
    """Returns the keys that a dataclass has in files, each with the type of its data."""
    keys: dict[str, Any] = {}
    for field in _fields(kind):
        if _Mark.INLINE in field.marks:
            keys |= keys_of(_plain(field.kind)[0])
        else:
            stored = _in_files(field.kind, _Mark.RARE not in field.marks or field.default is not None)
            keys[field.key] = stored if field.required else NotRequired[stored]
    return keys


def _plain(hint: Any) -> tuple[Any, Stored | None]:
    """Returns an annotation without its metadata, and of these what the value is stored as."""
    if typing.get_origin(hint) is not Annotated:
        return hint, None
    return hint.__origin__, next((mark for mark in hint.__metadata__ if isinstance(mark, Stored)), None)


def _in_files(hint: Any, nullable: bool = True) -> Any:
    """Returns the type of a value's data in a file, without None unless that may be there."""
    kind, stored = _plain(hint)
    if kind is not hint:
        inner = _in_files(stored.kind) if stored else _in_files(kind, nullable)
        asked = tuple(mark for mark in hint.__metadata__ if isinstance(mark, Asked))
        return operator.getitem(Annotated, (inner, *asked)) if asked else inner
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _nested(hint)
    if origin is tuple:
        item: Any = _in_files(arguments[0])
        if arguments[-1] is Ellipsis:
            return list[item]
        return Annotated[list[item], listed("", min_length=len(arguments), max_length=len(arguments))]
    if origin is collections.abc.Mapping:
        value: Any = _in_files(arguments[1])
        return dict[str, value]
    if origin in (typing.Union, types.UnionType):
        kept = [member for member in arguments if nullable or member is not types.NoneType]
        return typing.Union[tuple(map(_in_files, kept))]  # noqa: UP007
    return kind


def _written(hint: Any, value: Any) -> Any:
    stored = _plain(hint)[1]
    value = stored.write(value) if stored else value
    if dataclasses.is_dataclass(value):
        return data_of(value)
    if isinstance(value, tuple):
        return [_written(None, item) for item in value]
    if isinstance(value, Mapping):
        return {key: _written(None, item) for key, item in value.items()}
    return value


def _read_at(step: str | int, hint: Any, data: Any) -> Any:
    try:
        return _read(hint, data)
    except ValueError as error:
        raise WrongDataError((step, *getattr(error, "where", ())), str(error)) from None


def _read(hint: Any, data: Any) -> Any:
    kind, stored = _plain(hint)
    if stored:
        return stored.read(data if kind is Any else _read(stored.kind, data))
    if kind is not hint:
        return _read(kind, data)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return object_of(kind, data)  # type: ignore[arg-type]
    if origin is tuple:
        return tuple(_read_at(n, arguments[0], item) for n, item in enumerate(data))
    if origin is collections.abc.Mapping:
        return {key: _read_at(key, arguments[1], item) for key, item in data.items()}
    if origin in (typing.Union, types.UnionType):
        return data if data is None or isinstance(data, str) else _read(arguments[0], data)
    if origin is Literal:
        return type(arguments[0])(data)
    return kind(data) if kind in (int, float) else data
