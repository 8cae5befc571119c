"""The seconds of this process's threads: computing, and waiting for a core. Linux only.

Ray's workers can't import what is beside a script: who calls these functions there hands them over by value.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_TASKS = Path("/proc/self/task")


def thread_seconds() -> dict[str, float]:
    """CPU seconds of each thread of this process so far, by its name and number."""
    seconds: dict[str, float] = {}
    ticks = os.sysconf("SC_CLK_TCK")
    for task in _TASKS.iterdir():
        try:
            stat = (task / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        name, _, rest = stat.partition("(")[2].rpartition(")")
        fields = rest.split()
        seconds[f"{name} {task.name}"] = (int(fields[11]) + int(fields[12])) / ticks
    return seconds


def seconds_without_core() -> float:
    """How long threads of this process were ready to compute while something else had their cores, so far.

    References:
        Linux, Documentation/scheduler/sched-stats.rst.
    """
    total = 0.0
    for task in _TASKS.iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return total
