"""How far a long search is, and the wish that it ends with the best that it has, told to and by whoever waits."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import time
from collections.abc import Callable, Iterator
from typing import final

__all__ = ["SearchWatch", "candidate_priced", "candidates_begun", "current_watch", "is_stopped", "watched"]

_FEW = 6
"""The candidates that are left take about as long as so many of the last ones of their kind."""


@final
class SearchWatch:
    """A search as whoever waits for it sees it.

    Args:
        clock: a function that returns the time in seconds.

    Attributes:
        priced: how many candidates are priced.
        left: about how many more will be, of each kind: alike to one before, or anew, which takes longer.
        has_plan: whether there is an answer already, with which the search can end.
        is_stopped: whether the search is to price no further candidates.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.priced, self.left = 0, (0, 0)
        self.has_plan = self.is_stopped = False
        self._clock, self._last = clock, 0.0
        self._seconds = collections.deque[float](maxlen=_FEW), collections.deque[float](maxlen=_FEW)

    def begin(self) -> None:
        """Takes note that the first of some candidates is begun with."""
        self._last = self._clock()

    def price(self, has_plan: bool, left: tuple[int, int], anew: bool) -> None:
        """Takes note of one more priced candidate, its kind, whether there is a plan, and how many are left."""
        now = self._clock()
        self._seconds[anew].append(now - self._last)
        self.priced, self.left, self._last = self.priced + 1, left, now
        self.has_plan = self.has_plan or has_plan

    def remaining_s(self) -> float | None:
        """Returns about how many seconds the candidates that are left take, each as many as the last few of its kind
        did on average; None before two are priced, and once none is left.
        """
        if self.priced < 2 or not any(self.left):
            return None
        # As long as there is none of a kind, one of the other stands in for it.
        alike, anew = self._seconds
        kinds = zip((alike or anew, anew or alike), self.left, strict=True)
        whole_s = sum(sum(last_s) / len(last_s) * count for last_s, count in kinds)
        return max(whole_s - (self._clock() - self._last), 0.0)


_OF: contextvars.ContextVar[SearchWatch | None] = contextvars.ContextVar("search_watch", default=None)


def candidates_begun() -> None:
    """Tells that a search begins to price candidates."""
    watch = _OF.get()
    if watch is not None:
        watch.begin()


def candidate_priced(has_plan: bool, left: tuple[int, int], anew: bool) -> None:
    """Tells that a search has priced a candidate, whether it has a plan, about how many candidates are left (alike to
    one before, and anew), and of which kind this one was.
    """
    watch = _OF.get()
    if watch is not None:
        watch.price(has_plan, left, anew)


def is_stopped() -> bool:
    """Returns whether a search is to end with the best that it has."""
    watch = _OF.get()
    return watch is not None and watch.is_stopped


def current_watch() -> SearchWatch | None:
    """Returns the watch that searches tell how far they are; None where nobody waits."""
    return _OF.get()


@contextlib.contextmanager
def watched(watch: SearchWatch) -> Iterator[None]:
    """Has the searches of a `with` block tell a watch how far they are, and end when that is stopped."""
    before = _OF.set(watch)
    try:
        yield
    finally:
        _OF.reset(before)
