"""Seconds of planning, step by step."""

from __future__ import annotations

import time
from typing import final

__all__ = ["Clock"]


@final
class Clock:
    """Adds up seconds by the name of the step that they went to."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Counts the time since the last lap for a step."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now
