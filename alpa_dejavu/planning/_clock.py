"""Seconds of planning, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

__all__ = ["Clock"]


@final
class Clock:
    """Adds up seconds by the name of the step that they went to.

    Args:
        now_s: what tells the seconds that have passed.
    """

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._now_s = now_s
        self._last = now_s()

    def lap(self, name: str) -> None:
        """Counts the time since the last lap for a step."""
        now = self._now_s()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now
