"""The fields of which files' formats are declared: constraints, and in words what a value must be.

A format is a dataclass (`dataclass_format`) or a `TypedDict` of such fields: pydantic checks data by it, mypy checks
what reads and writes the data, and `schemas/` has it as JSON Schema. Pydantic itself is imported where a file is
checked: it takes a tenth of a second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar, final

_Kind = TypeVar("_Kind")
MOST = 1_000_000
"""The most layers, devices or micro-batches: what has an object for each has to end."""
_MOST_WHOLE = 2**63 - 1
_LEAST_GIVEN, _MOST_GIVEN = 1e-30, 1e30
_LEAST, _MOST = 1e-100, 1e100
"""Bounds: calculated figures may be larger than given ones; of both, sums and products of some are finite."""


def file_format(kind: type[_Kind]) -> type[_Kind]:
    """Decorates the outermost type of a format: unknown keys are refused; those inside are checked as it is."""
    kind.__pydantic_config__ = {"extra": "forbid", "strict": True}  # type: ignore[attr-defined]
    return kind


@final
class WrongDataError(ValueError):
    """An error of data that isn't as its format asks; `where` is the place, as a sequence of keys and indices."""

    def __init__(self, where: Sequence[str | int], message: str) -> None:
        super().__init__(message)
        self.where = where


@final
@dataclasses.dataclass(frozen=True)
class Asked:
    """A part of an `Annotated` type that says what a value in a file must be.

    Attributes:
        description: in words, for errors and schemas; empty for a member of a union, which has a description itself.
        constraints: names and values of pydantic's constraints, such as ("ge", 0).
        before: a function that is called with the value before it is checked; it may raise ValueError.
    """

    description: str = ""
    constraints: tuple[tuple[str, Hashable], ...] = ()
    before: Callable[[Any], Any] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Returns pydantic's schema of the annotated type, with the constraints."""
        schema = handler(source)
        inner = schema["schema"] if schema["type"] == "function-before" else schema
        inner.update(self.constraints)
        if self.before is None:
            return schema
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self.before, schema)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], Any]) -> Any:
        """Returns the JSON Schema of the annotated type, with the description."""
        return {**handler(schema), **({"description": self.description} if self.description else {})}


def _as_whole(value: Any) -> Any:
    """4.0 is as whole as 4 in JSON, which has one kind of numbers; true is none."""
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = Asked(before=_as_whole)


def stated(description: str, **constraints: Hashable) -> Asked:
    """Returns a field with pydantic's constraints, whose description says in words what the value must be."""
    return Asked(description, tuple(constraints.items()))


def listed(description: str, **constraints: Hashable) -> Asked:
    """Returns a field for a list, whose check stops at the first wrong element, as a file may have millions."""
    return stated(description, fail_fast=True, **constraints)


def at_most(count: int) -> Asked:
    """Returns a field that rejects a JSON object with more than `count` keys."""

    def few(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise ValueError(f"it has {len(value)} names, but may have {count}")
        return value

    return Asked(before=few)


def whole(description: str, least: int = 0, most: int = _MOST_WHOLE) -> Asked:
    """Returns a field for a whole number from `least` to `most`, both inclusive, which may be written as 4.0."""
    return Asked(description, (("ge", least), ("le", most)), _as_whole)


Text: TypeAlias = Annotated[str, stated("text", min_length=1)]
Words: TypeAlias = Annotated[str, stated("text")]
Source: TypeAlias = Annotated[str, stated("text: where the figure is from", min_length=1)]
Index: TypeAlias = Annotated[int, whole("a whole number of at least 0")]
Count: TypeAlias = Annotated[int, whole("a whole number of at least 1", 1)]
Size: TypeAlias = Annotated[int, whole("a whole number of at least 1", 1, MOST)]
Number: TypeAlias = Annotated[float, stated("a number", ge=-_MOST, le=_MOST)]
NotNegative: TypeAlias = Annotated[float, stated("a number of at least 0", ge=0, le=_MOST)]
Positive: TypeAlias = Annotated[float, stated("a number above 0", ge=_LEAST, le=_MOST)]
Seconds: TypeAlias = Annotated[float, stated("seconds of at least 0", ge=0, le=_MOST)]
SecondsAboveZero: TypeAlias = Annotated[float, stated("seconds above 0", ge=_LEAST, le=_MOST)]
Bytes: TypeAlias = Annotated[float, stated("bytes of at least 0", ge=0, le=_MOST)]
Given: TypeAlias = Annotated[float, stated("a number", ge=-_MOST_GIVEN, le=_MOST_GIVEN)]
GivenNotNegative: TypeAlias = Annotated[float, stated("a number of at least 0", ge=0, le=_MOST_GIVEN)]
GivenPositive: TypeAlias = Annotated[float, stated("a number above 0", ge=_LEAST_GIVEN, le=_MOST_GIVEN)]
Price: TypeAlias = Annotated[NotNegative | None, stated("US dollars, or null where a host's price isn't known")]
Share: TypeAlias = Annotated[float, stated("a share from 0 to 1", ge=0, le=1 + 1e-9)]
Names: TypeAlias = Annotated[tuple[Text, ...], listed("a list of names")]
