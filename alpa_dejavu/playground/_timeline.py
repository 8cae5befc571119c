"""Intervals of workers' time, with what they do in each, kept where it is asked for."""

from __future__ import annotations

import math
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

__all__ = ["COMPUTING", "FAILED", "SENDING", "TIMELINE", "Intervals", "Timeline"]

COMPUTING, SENDING, FAILED = range(3)
TIMELINE = np.dtype([("worker", np.int32), ("kind", np.int32), ("other", np.int32), ("start_s", np.float64),
                     ("end_s", np.float64)])  # fmt: skip


class Intervals(Protocol):
    """The intervals of workers' time as they begin and end."""

    def begin(self, worker: int, kind: int, now_s: float, other: int = -1) -> Any:
        """Returns a new interval, for `finish`."""

    def finish(self, interval: Any, now_s: float) -> None:
        """Ends an interval, if it hasn't ended yet."""

    def finish_all(self, worker: int, kind: int, now_s: float) -> None:
        """Ends all intervals of a kind that a worker has."""


@final
class Timeline:
    """Intervals of workers' time, in the order in which they begin; once there are enough, later ones are left out.

    Args:
        most: how many intervals are kept.
    """

    def __init__(self, most: int) -> None:
        self._most, self._rows = most, list[list[Any]]()

    def begin(self, worker: int, kind: int, now_s: float, other: int = -1) -> list[Any] | None:
        """Returns a new interval, for `finish`; None if there are enough.

        Args:
            worker: the worker that computes, sends, or is lost.
            kind: `COMPUTING`, `SENDING` or `FAILED`.
            now_s: when it begins.
            other: the worker that is sent to.
        """
        if len(self._rows) >= self._most:
            return None
        self._rows.append([worker, kind, other, now_s, math.inf])
        return self._rows[-1]

    def finish(self, interval: list[Any] | None, now_s: float) -> None:
        """Ends an interval, if it hasn't ended yet."""
        if interval is not None and interval[4] == math.inf:
            interval[4] = now_s

    def lose(self, worker: int, now_s: float) -> None:
        """Ends what a worker that is lost computes, sends and is sent, and begins that it is lost."""
        for interval in self._rows:
            if worker in (interval[0], interval[2]):
                self.finish(interval, now_s)
        self.begin(worker, FAILED, now_s)

    def finish_all(self, worker: int, kind: int, now_s: float) -> None:
        """Ends all intervals of a kind that a worker has."""
        for interval in self._rows:
            if interval[:2] == [worker, kind]:
                self.finish(interval, now_s)

    def intervals(self, end_s: float) -> NDArray[Any]:
        """Returns all intervals until the end, as `History.timeline` has them."""
        return np.array([(*row[:4], min(row[4], end_s)) for row in self._rows], TIMELINE)
