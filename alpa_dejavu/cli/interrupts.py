"""How an interrupt ends a command: at once, wherever that is, but for where there is more to end than this process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

from alpa_dejavu._util.json_file import remove_unfinished
from alpa_dejavu._util.search_watch import current_watch

STOPPING = "Stopping with the best plan so far; interrupt again to end without it"
_SHOW_CURSOR = b"\x1b[?25h"
"""Progress that is shown has hidden it."""


def end_at_once(*_: object) -> None:
    """Ends the process at once with a line of text and the exit code 130, on the signal of an interrupt (Ctrl-C).

    An exception would be raised only after a running call into compiled code, and might be lost there.
    """
    remove_unfinished()
    with contextlib.suppress(OSError):
        os.write(2, _line())
    os._exit(130)


@contextlib.contextmanager
def interrupts_raised() -> Iterator[None]:
    """Has interrupts, and other signals to end, raise KeyboardInterrupt in a `with` block that has processes to end."""
    # What the caller handles by itself, or ignores as `nohup` does, stays as it is.
    usual = {signal.SIGINT: end_at_once, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: handler for number, handler in usual.items() if signal.getsignal(number) is handler}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def interrupts_stop() -> Iterator[None]:
    """Has the first interrupt in a `with` block stop the watched search if that has a plan; any other ends at once."""
    search = current_watch()
    if search is None or signal.getsignal(signal.SIGINT) is not end_at_once:  # the caller handles or ignores it
        yield
        return

    def stop(*_: object) -> None:
        if search.is_stopped or not search.has_plan:
            end_at_once()
        search.is_stopped = True
        if not os.isatty(2):  # on a terminal the line that shows the phase says it
            with contextlib.suppress(OSError):
                os.write(2, f"{STOPPING}\n".encode())

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, end_at_once)


def _line() -> bytes:
    """Below the ^C that a terminal shows."""
    if not os.isatty(2):
        return b"Interrupted\n"
    dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    return (b"" if dumb else _SHOW_CURSOR) + b"\nInterrupted\n"
