"""The system's tools, with their own words when they fail."""

from __future__ import annotations

import os
import subprocess

__all__ = ["NotShownError", "ran"]


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
