"""Names for what a process makes in the system: a later process finds by them what one that was killed has left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"alpadj-(\d+)-(\d+)-.*")


def own_name(what: str) -> str:
    """Returns the name for something of this process."""
    return f"alpadj-{os.getpid()}-{_started(os.getpid())}-{what}"


def is_leftover(name: str) -> bool:
    """Returns whether something of this name was made by a process that is gone."""
    match = _NAME.fullmatch(name)
    return match is not None and _started(int(match[1])) != match[2]


@contextlib.contextmanager
def own_directory() -> Iterator[Path]:
    """Makes a directory for the time of a `with` block, and removes those that processes have left that are gone. Its
    path is short: those of Unix sockets in it may have 107 characters at most.
    """
    temporary = Path("/tmp") if os.path.isdir("/tmp") else Path(tempfile.gettempdir())
    for left in [path for path in temporary.glob("alpadj-*") if is_leftover(path.name)]:
        shutil.rmtree(left, ignore_errors=True)
    directory = tempfile.mkdtemp(prefix=own_name(""), dir=temporary)
    try:
        yield Path(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _started(pid: int) -> str:
    """Returns when a process has started, in ticks since the machine did; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


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
