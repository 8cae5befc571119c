"""Wall time of a call, and what is to be known of the machine that took it."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

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


def machine() -> dict[str, object]:
    """The heading of a JSON file with timings."""
    return {"cores": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__}
