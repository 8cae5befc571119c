"""How fast the end of a program moves when its tasks' seconds begin to change: the derivative along critical paths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.simulation._clock import own_devices
from alpa_dejavu.simulation._program import Program

__all__ = ["slopes"]

FloatArray = NDArray[np.float64]
_TIE = 1e-9
"""Paths whose lengths differ by no more than this share of the longest are equally long: additions round."""


def slopes(
    tasks: Program, entries: NDArray[np.int64], seconds: FloatArray, changes: FloatArray, at_a_time: int
) -> FloatArray:
    """Returns the derivative of a step's seconds along each of K changes of the tasks' seconds, shape (K,).

    The step is the length of the longest path through the graph of tasks. Where several are equally long, the one that
    grows most, or shrinks least, decides: the derivative holds for going along the direction, not for going back.

    Args:
        tasks: the graph of the step's N tasks.
        entries: shape (N,), for each task the index, among R numbers of seconds, of those that it takes.
        seconds: shape (R,), these numbers of seconds.
        changes: shape (K, R), what a unit along each direction adds to `seconds`.
        at_a_time: the most numbers that are kept in memory at a time.
    """
    starts, ends = own_devices(tasks, seconds[entries])
    critical = _critical(tasks, starts, ends)
    width = max(1, at_a_time // max(len(critical), 1))
    rows = entries.tolist()
    parts = [changes[first : first + width] for first in range(0, len(changes), width)]
    found = [_longest(critical, rows, np.ascontiguousarray(part.T)) for part in parts]
    return np.concatenate(found) if found else np.zeros(0)


def _critical(tasks: Program, starts: FloatArray, ends: FloatArray) -> list[tuple[int, list[int], bool]]:
    """Returns the tasks on critical paths, in order: its number, those it comes right after, and if it is an end."""
    last = float(ends.max())
    slack = _TIE * last
    is_end = (ends >= last - slack).tolist()
    wanted, began, ended = list(is_end), starts.tolist(), ends.tolist()
    waits = tasks.waits.T.tolist()
    found = []
    for n in range(len(tasks) - 1, -1, -1):
        if wanted[n]:
            before = [m for m in dict.fromkeys(waits[n]) if m >= 0 and began[n] - ended[m] <= slack]
            for m in before:
                wanted[m] = True
            found.append((n, before, is_end[n]))
    return found[::-1]


def _longest(critical: list[tuple[int, list[int], bool]], rows: list[int], changes: FloatArray) -> FloatArray:
    """Returns the largest change of a critical path, for each column of `changes`."""
    reached: dict[int, FloatArray] = {}
    best = np.full(changes.shape[1], -np.inf)
    nothing = np.zeros(changes.shape[1])
    for n, before, is_end in critical:
        longest = reached[before[0]] if before else nothing
        for m in before[1:]:
            longest = np.maximum(longest, reached[m])
        reached[n] = longest + changes[rows[n]]
        if is_end:
            np.maximum(best, reached[n], out=best)
    return best
