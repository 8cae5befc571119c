"""Processes that lose their parents, such as Ray's, as children of this one, so that none of them is left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

__all__ = ["adopt_orphans", "end_children"]

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Has processes that lose their parent become this one's children from now on, so that `end_children` finds them.

    Raises:
        OSError: the system can't; Linux can.
    """
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if prctl is None or prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed: this needs Linux")


def end_children() -> None:
    """Ends every process that this one started or adopted, and those that they leave behind."""
    while children := _children():
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                found.append(int(entry.parent.name))
    return found
