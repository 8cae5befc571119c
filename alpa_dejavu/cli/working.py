"""Shows the phase and the seconds of a command that works."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import final

from rich.text import Text

from alpa_dejavu._util import units
from alpa_dejavu._util.phases import EVERY_S, phases_told
from alpa_dejavu._util.search_watch import SearchWatch, watched
from alpa_dejavu.cli.interrupts import STOPPING
from alpa_dejavu.cli.output import Pages, printable, progress

_TERMINAL_S = 0.5
"""A terminal shows the seconds anew so often."""


@contextlib.contextmanager
def working(what: str, budget_s: float | None = None) -> Iterator[Callable[[str], None]]:
    """Shows on standard error what a `with` block does, its phase, for how long (of `budget_s`), and about how long it
    will yet: a spinner on a terminal, a line every ten seconds elsewhere.

    Yields what phases may be told to; those that planning tells are shown by themselves.
    """
    to = progress()
    shown = _ShownWork(what, budget_s)
    with contextlib.ExitStack() as stack:
        stack.enter_context(phases_told(shown.tell))
        stack.enter_context(watched(shown.search))
        if to.is_terminal:
            status = stack.enter_context(to.status(shown.text()))
            stack.enter_context(_repeated(_TERMINAL_S, lambda: status.update(Text(shown.text()))))
        else:
            stack.enter_context(_repeated(EVERY_S, lambda: _say(to, shown.text())))
        yield shown.tell


@final
class _ShownWork:
    """The work that is done, since when, and the phase that it is in."""

    def __init__(self, what: str, budget_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._budget_s, self._clock = what, budget_s, clock
        self._began, self._phase = clock(), ""
        self.search = SearchWatch(clock)

    def tell(self, phase: str) -> None:
        """Takes note of the phase that begins."""
        self._phase = phase

    def text(self) -> str:
        """Returns what is shown of it now, on one line."""
        took = units.seconds(float(int(self._clock() - self._began)))
        of = "" if self._budget_s is None else f" of about {units.seconds(self._budget_s)}"
        if self.search.is_stopped:
            return f"{STOPPING} ({took})"
        remaining_s = float(round(self.search.remaining_s() or 0.0))
        left = f", about {units.seconds(remaining_s)} left" if remaining_s else ""
        return printable(f"{self._what}: {self._phase + ', ' if self._phase else ''}{took}{of}{left}")


def _say(to: Pages, text: str) -> None:
    # Where standard error can't be written, there is nobody to tell.
    with contextlib.suppress(OSError, ValueError):
        to.print(text)


@contextlib.contextmanager
def _repeated(every_s: float, act: Callable[[], None]) -> Iterator[None]:
    """Has a function called by a thread of its own, again and again, while a `with` block runs."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(every_s):
            act()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
