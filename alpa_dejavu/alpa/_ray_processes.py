"""The processes of a local Ray cluster: which they are, and how they end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from pathlib import Path

from alpa_dejavu._util import units

logger = logging.getLogger(__name__)

_GRACE_S = 10.0


def processes_of_ray(directory: str) -> list[tuple[int, str]]:
    """Returns (pid, start time) of the servers that keep their files in `directory`, and of what they started."""
    servers = [process for process in descendants(os.getpid()) if directory in command(process[0])]
    return list(dict.fromkeys(process for server in servers for process in [server, *descendants(server[0])]))


def command(pid: int) -> str:
    """Returns a process's command line, with zero bytes between arguments; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def descendants(ancestor: int) -> list[tuple[int, str]]:
    """Returns the processes that a process has started, directly or not: (pid, start time) of each."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append((int(entry.parent.name), fields[19]))
    started: list[tuple[int, str]] = []
    waiting = [ancestor]
    while waiting:
        children = parents.get(waiting.pop(), [])
        started += children
        waiting += [pid for pid, _ in children]
    return started


def kill(processes: list[tuple[int, str]]) -> None:
    """Waits for the processes to end by themselves, then ends them, and waits until they are gone."""
    left = _left(processes)
    for pid, _ in left:
        logger.warning("process %d of the local Ray cluster didn't end within %s: killed", pid, units.seconds(_GRACE_S))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _left(left)


def _left(processes: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Returns those processes that haven't ended after a while."""
    deadline = time.monotonic() + _GRACE_S
    while processes and time.monotonic() < deadline:
        time.sleep(0.05)
        processes = [process for process in processes if _is_running(process)]
    return processes


def _is_running(process: tuple[int, str]) -> bool:
    pid, started = process
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[19] == started and fields[0] != "Z"
