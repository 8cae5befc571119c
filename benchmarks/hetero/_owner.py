"""Names of what a run makes in the system: they say whose it is, so that a later run finds what a killed one left."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["is_leftover", "own_name"]

_NAME = re.compile(r"alpadj-(\d+)-(\d+)-.*")


def own_name(what: str) -> str:
    """The name for something of this process."""
    return f"alpadj-{os.getpid()}-{_started(os.getpid())}-{what}"


def is_leftover(name: str) -> bool:
    """Whether something of this name was made by a process that is gone."""
    match = _NAME.fullmatch(name)
    return match is not None and _started(int(match[1])) != match[2]


def _started(pid: int) -> str:
    """When a process has started, in ticks since the machine did; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
