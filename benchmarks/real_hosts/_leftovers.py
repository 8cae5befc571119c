"""Names for what a process makes in the system: a later process finds by them what one that was killed has left."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["is_leftover", "own_directory", "own_name"]

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
