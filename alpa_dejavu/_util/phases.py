"""Long work tells what it is at to whoever shows it, and bars of tqdm that are readable in a log, too."""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO, final

if TYPE_CHECKING:
    from tqdm import tqdm

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


EVERY_S = 10.0
"""Where there is no terminal, a line is written so often."""


def progress_bar(stream: TextIO | None = None, **named: Any) -> tqdm[Any]:
    """Returns tqdm's bar, with what tqdm takes, for work that takes over two seconds; without a terminal it is a line
    every ten seconds. It is shown on standard error unless a stream is given.
    """
    from tqdm import tqdm

    stream = stream or sys.stderr
    shown, every_s = (stream, 1.0) if stream.isatty() else (_Lines(stream), EVERY_S)
    return tqdm(**{"file": shown, "mininterval": every_s, "maxinterval": EVERY_S, "delay": 2.0, **named})


@final
class _Lines:
    """A stream that writes what a bar draws as lines, in place of drawing over what it drew before."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        drawn = text.strip()
        if drawn:
            self._stream.write(f"{drawn}\n")

    def flush(self) -> None:
        self._stream.flush()
