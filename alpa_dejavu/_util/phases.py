"""Tells what long work is at to whoever shows it; without anybody, telling costs nothing."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

_TO: contextvars.ContextVar[Callable[[str], object] | None] = contextvars.ContextVar("phases", default=None)


def phase(name: str) -> None:
    """Tells that long work begins a phase, such as "sharding"."""
    told = _TO.get()
    if told is not None:
        told(name)


@contextlib.contextmanager
def phases_told(to: Callable[[str], object]) -> Iterator[None]:
    """Has the phases of what runs in a `with` block told to a function.

    >>> found = []
    >>> with phases_told(found.append):
    ...     phase("tracing")
    >>> phase("slicing")
    >>> found
    ['tracing']
    """
    before = _TO.set(to)
    try:
        yield
    finally:
        _TO.reset(before)


@contextlib.contextmanager
def phases_of(part: str) -> Iterator[None]:
    """Has the phases of what runs in a `with` block told as those of a part of longer work.

    >>> found = []
    >>> with phases_told(found.append), phases_of("1 of 2"):
    ...     phase("tracing")
    >>> found
    ['1 of 2', '1 of 2, tracing']
    """
    told = _TO.get()
    if told is None:
        yield
        return
    told(part)
    with phases_told(lambda name: told(f"{part}, {name}")):
        yield
