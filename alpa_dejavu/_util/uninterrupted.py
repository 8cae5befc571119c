"""Cleaning up that a second Ctrl-C, or another signal that asks a process to end, doesn't stop."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

_ASKING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignores the signals that ask a process to end while a `with` block runs in the main thread, where they arrive."""
    before = {}
    try:
        for number in _ASKING:
            before[number] = signal.signal(number, signal.SIG_IGN)
    except ValueError:  # another thread
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
