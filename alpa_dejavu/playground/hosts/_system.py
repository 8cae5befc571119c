"""The system's tools, with their own words when they fail, and names for what a run makes in the system.

The names say whose it is, so that a later run finds what a killed one left.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

__all__ = ["NotShownError", "is_leftover", "own_name", "ran"]

_NAME = re.compile(r"alpadj-(\d+)-(\d+)-.*")


def own_name(what: str) -> str:
    """Returns the name for something of this process."""
    return f"alpadj-{os.getpid()}-{_started(os.getpid())}-{what}"


def is_leftover(name: str) -> bool:
    """Returns whether something of this name was made by a process that is gone."""
    match = _NAME.fullmatch(name)
    return match is not None and _started(int(match[1])) != match[2]


def _started(pid: int) -> str:
    """Returns when a process has started, in ticks since the machine did; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


class NotShownError(RuntimeError):
    """This machine can't hold such hosts; the message says why."""


def ran(*command: str) -> str:
    """Runs a command, and returns its output.

    Raises:
        NotShownError: it isn't there, or it failed; with what it said.
    """
    try:
        # Where an ordinary user's PATH lacks it, root's tools are in /usr/sbin.
        path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})
    except FileNotFoundError:
        raise NotShownError(f"there is no {command[0]!r} here; install iproute2") from None
    if done.returncode:
        raise NotShownError(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
