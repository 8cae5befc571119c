"""A profile of collectives, checked: rows that weren't measured, or can't be right, are found and left out."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FILLED_IN = "exactly twice the time of half the size"
"""The reason to leave a row out that wasn't measured."""
_SAME = 1e-9
_FALLS = 0.75


@final
@dataclasses.dataclass(frozen=True)
class Suspect:
    """A row of a profile of measured collectives that a fit leaves out: its index, and the reason."""

    row: int
    reason: str


def suspects(series: Sequence[object], num_bytes: Array, seconds: Array) -> list[Suspect]:
    """Returns the rows of a profile of collectives that a fit must leave out, each with the first reason that holds for
    it.

    Args:
        series: what each row belongs to (the same collective, group and dtype), of shape (rows,).
        num_bytes: the bytes of each row, shape (rows,).
        seconds: the seconds of each row, shape (rows,). Times that aren't finite, negative or zero times, sizes that
            aren't finite numbers of at least 0, repeated sizes, times that are exactly twice those of half the size
            (filled in by doubling), and times below three quarters of a smaller size's are suspect.

    >>> suspects(["a"] * 4, np.array([1.0, 2, 4, 8]), np.array([1.0, 1.5, 3.0, np.inf]))
    [Suspect(row=2, reason='exactly twice the time of half the size'), Suspect(row=3, reason='not finite')]
    """
    found: dict[int, str] = {}
    for row, value in enumerate(seconds.tolist()):
        if not np.isfinite(value):
            found[row] = "not finite"
        elif value <= 0:
            found[row] = "not above zero"
        elif not (np.isfinite(num_bytes[row]) and num_bytes[row] >= 0):
            found[row] = "of no size"
    names = {name: code for code, name in enumerate(dict.fromkeys(series))}
    codes = np.array([names[name] for name in series])
    for code in range(len(names)):
        rows = np.array([row for row in np.flatnonzero(codes == code) if row not in found], dtype=np.int64)
        found |= _of_series(rows[np.argsort(num_bytes[rows], kind="stable")], num_bytes, seconds)
    return [Suspect(row, found[row]) for row in sorted(found)]


def summary(found: Sequence[Suspect]) -> str:
    """Returns a line that says how many rows of a profile are left out for which reason.

    >>> summary([Suspect(3, "not finite"), Suspect(5, "not finite")])
    '2 not finite'
    """
    counted = Counter(each.reason for each in found)
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counted.items())) or "none"


def _of_series(rows: NDArray[np.int64], num_bytes: Array, seconds: Array) -> dict[int, str]:
    """Returns the rows of a series to leave out, each with the reason; `rows` are in order of size."""
    found: dict[int, str] = {}
    known: dict[float, float] = {}
    longest = 0.0
    for row in rows.tolist():
        size, time = float(num_bytes[row]), float(seconds[row])
        half = known.get(size / 2)
        if half is not None and size > 0 and abs(time - 2 * half) <= _SAME * time:
            found[row] = FILLED_IN
        elif size in known:
            found[row] = "a size that was there already"
        elif time < _FALLS * longest:
            found[row] = "faster than a smaller size"
        else:
            longest = max(longest, time)
        known.setdefault(size, time)
    return found
