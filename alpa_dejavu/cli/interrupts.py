"""How an interrupt ends a command: at once, wherever that is, but for where there is more to end than this process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

from alpa_dejavu._util.unfinished import remove_unfinished

_SHOW_CURSOR = b"\x1b[?25h"
"""Progress that is shown has hidden it."""


def end_at_once(*_: object) -> None:
    """Handles the signal of an interrupt: ends the process at once with a line of text and the exit code 130.

    An exception instead would wait for all that is on its way, and would be lost where code that Python calls by itself
    is just running, or where somebody catches it.
    """
    remove_unfinished()
    with contextlib.suppress(OSError):
        os.write(2, _line())
    os._exit(130)


@contextlib.contextmanager
def interrupts_raised() -> Iterator[None]:
    """Has an interrupt raise KeyboardInterrupt while a `with` block runs, so that what was started is ended too (Ray,
    other processes).
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not end_at_once:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _line() -> bytes:
    """Below the ^C that a terminal shows."""
    if not os.isatty(2):
        return b"Interrupted\n"
    dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    return (b"" if dumb else _SHOW_CURSOR) + b"\nInterrupted\n"
