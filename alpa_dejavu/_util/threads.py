"""The threads of this process and the cores that they may run on. Linux only, but for `usable_cores`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

_TASKS = Path("/proc/self/task")


def usable_cores() -> int:
    """Returns how many CPU cores this process may keep busy: as many as its affinity, the quota of its control group
    (rounded up) and `$LOKY_MAX_CPU_COUNT` allow.
    """
    import joblib  # it takes 0.2 s, which most commands don't need

    return int(joblib.cpu_count())


def pin(cores: Iterable[int]) -> list[int]:
    """Restricts all threads of this process, and those that they start, to some CPU cores; returns the cores that they
    got. Raises OSError if there is no such core, or this isn't Linux.
    """
    wanted = set(cores)
    # A thread may start another one meanwhile, which has its cores from the one that started it.
    while any(_cores(thread) != wanted for thread in _threads()):
        for thread in _threads():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, wanted)
    return sorted(os.sched_getaffinity(0))


def cores_of_threads() -> list[list[int]]:
    """Returns the different sets of CPU cores that this process's threads may run on."""
    return sorted({tuple(sorted(_cores(thread) or ())) for thread in _threads()} - {()})  # type: ignore[arg-type]


def _threads() -> list[int]:
    return [int(task.name) for task in _TASKS.iterdir()]


def _cores(thread: int) -> set[int] | None:
    try:
        return os.sched_getaffinity(thread)
    except ProcessLookupError:
        return None


def machine_memory_bytes() -> float:
    """Returns the bytes of memory that this machine has."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
