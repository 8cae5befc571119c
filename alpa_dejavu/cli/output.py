"""The consoles where commands print."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, TextIO, final

from rich.console import Console
from rich.status import Status
from rich.text import Text

from alpa_dejavu.cli.streams import printable, to_stdout

_WIDTH = 160
_SIZES, _DIGITS = ("COLUMNS", "LINES"), 5
"""The variables that set a terminal's size, and the most digits that it has."""


@final
class _Console(Console):
    """A console that shows text as it is but for control characters: no markup, no emoji, nothing that acts."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Returns a text as it is to be printed: with its control characters escaped, and without markup."""
        return super().render_str(printable(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints objects, such as texts and tables; if standard output can't be written, one line says why."""
        with contextlib.nullcontext() if self.file is sys.stderr else to_stdout():
            super().print(*objects, **options)

    def status(self, status: Any, **options: Any) -> Status:
        """Returns rich's status display (a spinner with a text); markup in the text isn't interpreted."""
        return super().status(Text(printable(status)), **options)

    def on_broken_pipe(self) -> None:
        """Raises the error of a broken pipe again, so that it is reported, instead of ending the process."""
        raise


def console(aside: bool = False) -> Console:
    """Returns the console that prints to standard output, or with `aside` to standard error.

    Where that isn't a terminal it is 160 characters wide, so that rows of tables aren't folded.
    """
    stream = sys.stderr if aside else sys.stdout
    return _of(stream, width=None if stream.isatty() else _WIDTH)


def progress() -> Console:
    """Returns the console on standard error for progress bars and status texts; off a terminal it shows none."""
    return _of(sys.stderr)


def _of(stream: TextIO, width: int | None = None) -> Console:
    # What isn't a size of a terminal is as good as none.
    sane = {name: value for name, value in os.environ.items() if name not in _SIZES or len(value) <= _DIGITS}
    return _Console(file=stream, highlight=False, markup=False, emoji=False, width=width, _environ=sane)
