"""Running the system's tools for networks, with their own words when they fail."""

from __future__ import annotations

import os
import subprocess

__all__ = ["NotShownError", "ran"]


class NotShownError(RuntimeError):
    """This machine can't hold such a cluster: the message says what is missing."""


def ran(*command: str) -> str:
    """What a command prints.

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
