"""Seconds of planning, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

__all__ = ["Clock"]


@final
class Clock:
    """A stopwatch that adds up the seconds that each named step of the planning took.

    Args:
        now_s: a function that returns the time in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._now_s = now_s
        self._last = now_s()

    def lap(self, name: str) -> None:
        """Adds the seconds since the last lap to the named step of the planning."""
        now = self._now_s()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now
