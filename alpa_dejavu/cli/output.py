"""The consoles where commands print."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from collections.abc import Iterable
from typing import Any, TextIO, final

from rich.console import Console
from rich.status import Status
from rich.text import Text

from alpa_dejavu._util.columns import wrapped
from alpa_dejavu.cli.streams import printable, to_stdout

_ENDLESS = 10**5
"""The width where there is no terminal: a file or a pipe takes lines as long as they are."""
_SIZES, _LEAST, _DIGITS = ("COLUMNS", "LINES"), 20, 5
"""The variables that set a terminal's size, the least that is taken for one, and the most digits that it has."""
_INDENT, _NARROW = 24, 60
"""Where the text behind the name of a fact begins, and a width below which that would leave too little room."""


@final
class Pages(Console):
    """A console that shows text as it is but for control characters: no markup, no emoji, nothing that acts."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Returns a text as it is to be printed: with its control characters escaped, and without markup."""
        return super().render_str(printable(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints objects, such as texts and tables, each on a line of its own; if standard output can't be written, one
        line says why.

        On a terminal texts are broken between words; elsewhere each is one line. Nothing is cut.
        """
        lines = [line for each in objects for line in self._lines(each)]
        with contextlib.nullcontext() if self.file is sys.stderr else to_stdout():
            super().print(*lines, **{"sep": "\n", "soft_wrap": True, **options})

    def fact(self, name: str, text: str) -> None:
        """Prints a text behind its name; where a terminal breaks it into lines, they begin below each other."""
        if not self.is_terminal:
            self.print(f"{name:<{_INDENT}}{text}")
            return
        indent = _INDENT if self.width >= _NARROW and len(name) < _INDENT else 2
        lines = [" " * indent + line for line in wrapped(printable(text), self.width - indent)]
        if indent == _INDENT:
            lines[0] = f"{name:<{indent}}{lines[0].lstrip()}"
        else:
            lines.insert(0, name)
        self.print(*lines)

    def wrote(self, paths: Iterable[pathlib.Path]) -> None:
        """Prints which files were written."""
        for path in paths:
            self.print(f"wrote {path}")

    def _lines(self, each: Any) -> list[Any]:
        return wrapped(printable(each), self.width) if self.is_terminal and isinstance(each, str) else [each]

    def status(self, status: Any, **options: Any) -> Status:
        """Returns rich's status display (a spinner with a text); markup in the text isn't interpreted."""
        return super().status(Text(printable(status)), **options)

    def on_broken_pipe(self) -> None:
        """Raises the error of a broken pipe again, so that it is reported, instead of ending the process."""
        raise


def console(aside: bool = False) -> Pages:
    """Returns the console that prints to standard output, or with `aside` to standard error.

    Where that isn't a terminal it is as wide as need be, unless the variable COLUMNS says otherwise.
    """
    stream = sys.stderr if aside else sys.stdout
    return _of(stream, width=None if stream.isatty() or "COLUMNS" in _sane() else _ENDLESS)


def progress() -> Pages:
    """Returns the console on standard error for progress bars and status texts; off a terminal it shows none."""
    return _of(sys.stderr)


def _of(stream: TextIO, width: int | None = None) -> Pages:
    return Pages(file=stream, highlight=False, markup=False, emoji=False, width=width, _environ=_sane())


def _sane() -> dict[str, str]:
    """The environment, without sizes that no terminal has: these are as good as none."""
    return {name: value for name, value in os.environ.items() if name not in _SIZES or _is_size(value)}


def _is_size(value: str) -> bool:
    return value.isdecimal() and len(value) <= _DIGITS and int(value) >= _LEAST
