"""The threads of this process: the cores that they may run on, and what they have computed. Linux only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["cores_of_threads", "pin", "seconds_without_core", "thread_seconds"]

_TASKS = Path("/proc/self/task")


def pin(cores: Iterable[int]) -> list[int]:
    """Lets all threads of this process, and those that they start, run on these cores alone; the cores that they got.

    Raises:
        OSError: there is no such core, or this isn't Linux.
    """
    wanted = set(cores)
    # A thread may start another one meanwhile, which has its cores from the one that started it.
    while any(_cores(thread) != wanted for thread in _threads()):
        for thread in _threads():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, wanted)
    return sorted(os.sched_getaffinity(0))


def cores_of_threads() -> list[list[int]]:
    """The different sets of cores that this process's threads may run on."""
    return sorted({tuple(sorted(_cores(thread) or ())) for thread in _threads()} - {()})  # type: ignore[arg-type]


def thread_seconds() -> dict[str, float]:
    """CPU seconds of each thread of this process so far, by its name and number."""
    seconds: dict[str, float] = {}
    ticks = os.sysconf("SC_CLK_TCK")
    for thread in _threads():
        try:
            stat = (_TASKS / str(thread) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        name, _, rest = stat.partition("(")[2].rpartition(")")
        fields = rest.split()
        seconds[f"{name} {thread}"] = (int(fields[11]) + int(fields[12])) / ticks
    return seconds


def seconds_without_core() -> float:
    """How long threads of this process were ready to compute while something else had their cores, so far.

    References:
        Linux, Documentation/scheduler/sched-stats.rst.
    """
    total = 0.0
    for thread in _threads():
        with contextlib.suppress(OSError):
            total += int((_TASKS / str(thread) / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return total


def _threads() -> list[int]:
    return [int(task.name) for task in _TASKS.iterdir()]


def _cores(thread: int) -> set[int] | None:
    try:
        return os.sched_getaffinity(thread)
    except ProcessLookupError:
        return None
