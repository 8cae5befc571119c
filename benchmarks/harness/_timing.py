"""Wall time of calls, and memory of this process."""

from __future__ import annotations

import contextlib
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


def timed(call: Callable[[], Result], repeats: int = 5, enough_s: float = 2.0) -> tuple[float, Result]:
    """The median of some runs' wall time, and the last one's result; a run of over `enough_s` is the last one."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - started)
        if seconds[-1] > enough_s:
            break
    return statistics.median(seconds), result


def peak_bytes() -> float:
    """The most that this process has had in memory since it began, or since Linux was told to count anew.

    The operating system's resource usage has the parent's in it, from before the program began; it stands in where
    there is no /proc.
    """
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
        if found is not None:
            return 1024.0 * int(found[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
