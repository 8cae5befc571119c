"""The fields of which files' formats are declared: constraints, and in words what a value must be.

A format is a `TypedDict` of such fields: pydantic checks data by it, mypy checks what reads and writes the data, and
`schemas/` has it as JSON Schema. Formats are imported where a file is checked: pydantic takes a tenth of a second.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, with_config
from pydantic.fields import FieldInfo

MOST = 1_000_000
"""The most layers, devices or micro-batches: what has an object for each has to end."""
_MOST_WHOLE = 2**63 - 1
_LEAST_GIVEN, _MOST_GIVEN = 1e-30, 1e30
_LEAST, _MOST = 1e-100, 1e100
"""Bounds: calculated figures may be larger than given ones; of both, sums and products of some are finite."""

file_format = with_config(ConfigDict(extra="forbid", strict=True))
"""A decorator for the outermost type of a format; those inside are checked as it is."""


def _as_whole(value: Any) -> Any:
    """4.0 is as whole as 4 in JSON, which has one kind of numbers; true is none."""
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_as_whole)


def said(description: str, **constraints: Any) -> FieldInfo:
    """Returns a pydantic field with constraints, whose description says in words what the value must be; for a member
    of a union, whose own field describes it, that is "".
    """
    field: FieldInfo = Field(description=description or None, **constraints)
    return field


def listed(description: str, **constraints: Any) -> FieldInfo:
    """Returns a pydantic field for a list of maybe millions of elements: the check stops at the first wrong one."""
    return said(description, fail_fast=True, **constraints)


def at_most(count: int) -> BeforeValidator:
    """Returns a pydantic validator that rejects a JSON object with more than `count` keys."""

    def few(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise ValueError(f"it has {len(value)} names, but may have {count}")
        return value

    return BeforeValidator(few)


def whole(description: str, least: int = 0, most: int = _MOST_WHOLE) -> FieldInfo:
    """Returns a pydantic field for a whole number from `least` to `most`, both inclusive.

    In an `Annotated` type it is followed by the validator `WHOLE`, which takes 4.0 for 4.
    """
    return said(description, ge=least, le=most)


Text: TypeAlias = Annotated[str, said("text", min_length=1)]
Words: TypeAlias = Annotated[str, said("text")]
Source: TypeAlias = Annotated[str, said("text: where the figure is from", min_length=1)]
Index: TypeAlias = Annotated[int, whole("a whole number of at least 0"), WHOLE]
Count: TypeAlias = Annotated[int, whole("a whole number of at least 1", 1), WHOLE]
Size: TypeAlias = Annotated[int, whole("a whole number of at least 1", 1, MOST), WHOLE]
Number: TypeAlias = Annotated[float, said("a number", ge=-_MOST, le=_MOST)]
NotNegative: TypeAlias = Annotated[float, said("a number of at least 0", ge=0, le=_MOST)]
Positive: TypeAlias = Annotated[float, said("a number above 0", ge=_LEAST, le=_MOST)]
Seconds: TypeAlias = Annotated[float, said("seconds of at least 0", ge=0, le=_MOST)]
SecondsAboveZero: TypeAlias = Annotated[float, said("seconds above 0", ge=_LEAST, le=_MOST)]
Bytes: TypeAlias = Annotated[float, said("bytes of at least 0", ge=0, le=_MOST)]
Given: TypeAlias = Annotated[float, said("a number", ge=-_MOST_GIVEN, le=_MOST_GIVEN)]
GivenNotNegative: TypeAlias = Annotated[float, said("a number of at least 0", ge=0, le=_MOST_GIVEN)]
GivenPositive: TypeAlias = Annotated[float, said("a number above 0", ge=_LEAST_GIVEN, le=_MOST_GIVEN)]
Remat: TypeAlias = Annotated[Literal["none", "selective", "layer"], said('"none", "selective" or "layer"')]
Zero: TypeAlias = Annotated[Literal[0, 2, 3], said("0, 2 or 3"), WHOLE]
