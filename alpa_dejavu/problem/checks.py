"""The checks that every dataclass here makes of its numbers; each error names the field, the value and the range."""

from __future__ import annotations

import math


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def positive(owner: str, field: str, value: float) -> None:
    """Raises ValueError, naming the owner and its field, unless the field's value is finite and above zero."""
    if not (_finite(value) and value > 0):
        raise ValueError(f"{owner}: {field} is {value!r}, but must be a finite number above 0")


def not_negative(owner: str, field: str, value: float) -> None:
    """Raises ValueError, naming the owner and its field, unless the field's value is finite and at least zero."""
    if not (_finite(value) and value >= 0):
        raise ValueError(f"{owner}: {field} is {value!r}, but must be a finite number of at least 0")


def fields(owner: str, value: object, above_zero: str = "", from_zero: str = "") -> None:
    """Raises ValueError unless the named fields are finite and above zero, or at least zero, or None."""
    for check, names in ((positive, above_zero), (not_negative, from_zero)):
        for name in names.split():
            field = getattr(value, name)
            if field is not None:
                check(owner, name, field)


def count(owner: str, field: str, value: float) -> None:
    """Raises ValueError, naming the owner and its field, unless the field's value is a whole number above zero."""
    if not (_finite(value) and value >= 1 and value == int(value)):
        raise ValueError(f"{owner}: {field} is {value!r}, but must be a whole number of at least 1")


def share(owner: str, field: str, value: float) -> None:
    """Raises ValueError, naming the owner and its field, unless the field's value is at least zero and below one."""
    if not 0 <= value < 1:
        raise ValueError(f"{owner}: {field} is {value!r}, but must be at least 0 and below 1; 0.05 is 5 %")


def one_of(owner: str, field: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ValueError, naming the owner and its field, unless the field's value is one of the allowed choices."""
    if value not in choices:
        raise ValueError(f"{owner}: {field} is {value!r}, but must be one of {', '.join(map(repr, choices))}")
