"""The events of one real worker, which a recorder is told of afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeAlias, final

import numpy as np

from alpa_dejavu.playground._gradient import Gradient
from alpa_dejavu.playground._worker import Message

__all__ = ["LOST", "PARAMS", "SHOWN", "Entry", "Log", "Told"]

Entry: TypeAlias = tuple[str, tuple[Any, ...]]
"""The name of a method of a recorder or of a timeline, or one of those below, and its arguments."""
Told: TypeAlias = tuple[float, int, list[Entry]]
"""A moment, the worker that it is of, and what happened then."""
PARAMS, SHOWN, LOST = "params", "shown", "lost"
"""A worker has other parameters; the history is told of others; a worker is lost."""
_NONE = np.zeros(0, np.float32)


@final
class Log:
    """A list of the events of one worker at a moment, which counts nothing.

    Args:
        tell: takes a moment and its events.
    """

    def __init__(self, tell: Callable[[float, list[Entry]], None]) -> None:
        self._tell, self._entries = tell, list[Entry]()
        self.timeline = _Intervals(self._entries)

    def add(self, name: str, *arguments: Any) -> None:
        """Adds an event."""
        self._entries.append((name, arguments))

    def tell(self, now_s: float) -> None:
        """Hands on the events of a moment, if there are any."""
        if self._entries:
            self._tell(now_s, [*self._entries])
            self._entries.clear()

    def computed(self, worker: int, seconds: float) -> None:
        """Tells of a gradient that the worker has computed."""
        self.add("computed", worker, seconds)

    def cancelled(self, worker: int, seconds: float) -> None:
        """Tells of a gradient that the worker won't compute to its end."""
        self.add("cancelled", worker, seconds)

    def applied(self, gradient: Gradient, staleness: int) -> None:
        """Tells of a gradient that was applied."""
        self.add("applied", _bare(gradient), staleness)

    def dropped(self, gradient: Gradient) -> None:
        """Tells of a gradient that won't be applied."""
        self.add("dropped", _bare(gradient))

    def undone(self, gradients: int, staleness: int = 0) -> None:
        """Tells of gradients that were applied to parameters that are lost."""
        self.add("undone", gradients, staleness)

    def note(self, said: str) -> None:
        """Tells what an exchange has to say."""
        self.add("note", said)

    def used(self, message: Message, receiver: int) -> None:
        """Tells of a message that a program took."""
        self.add("used", Message(message.sender, None, message.num_bytes, message.sent_s), receiver)

    def sent(self, a: int, b: int, num_bytes: float) -> None:
        """Tells of a message from a host to another, or within one."""
        self.add("sent", a, b, num_bytes)


@final
class _Intervals:
    """Intervals of a worker's time, as events; each has a number."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries, self._numbers = entries, itertools.count()

    def begin(self, worker: int, kind: int, now_s: float, other: int = -1) -> int:
        number = next(self._numbers)
        self._entries.append(("begin", (number, worker, kind, now_s, other)))
        return number

    def finish(self, interval: int, now_s: float) -> None:
        self._entries.append(("finish", (interval, now_s)))

    def finish_all(self, worker: int, kind: int, now_s: float) -> None:
        self._entries.append(("finish_all", (worker, kind, now_s)))


def _bare(gradient: Gradient) -> Gradient:
    """Returns a gradient without its values: who counts doesn't look at them."""
    made = Gradient(None, gradient.worker, gradient.step, gradient.version, _NONE, gradient.rows)
    made.found = _NONE
    return made
