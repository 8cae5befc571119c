"""The consoles where commands print, and the standard streams: what is said where they can't be written."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any, TextIO, final

import click
from rich.console import Console
from rich.status import Status
from rich.text import Text

from alpa_dejavu._util.columns import wrapped
from alpa_dejavu._util.near_names import name_ranges

_ENDLESS = 10**5
"""The width where there is no terminal: a file or a pipe takes lines as long as they are."""
_SIZES, _LEAST, _DIGITS = ("COLUMNS", "LINES"), 20, 5
"""The variables that set a terminal's size, the least that is taken for one, and the most digits that it has."""
_FEW = 3
"""So many files alike that were written have a line each."""
_INDENT, _NARROW = 24, 60
"""Where the text behind the name of a fact begins, and a width below which that would leave too little room."""


@final
class Pages(Console):
    """A console that shows text as it is but for control characters: no markup, no emoji, nothing that acts."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Returns a text as it is to be printed: with its control characters escaped, and without markup."""
        return super().render_str(printable(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints objects, each on a line of its own, whole; if standard output can't be written, one line says why.
        Where a width is known texts are broken between words.
        """
        lines = [line for item in objects for line in self._lines(item)]
        with contextlib.nullcontext() if self.file is sys.stderr else to_stdout():
            super().print(*lines, **{"sep": "\n", "soft_wrap": True, **options})

    def fact(self, name: str, text: str) -> None:
        """Prints a text behind its name; where it is broken into lines, they begin below each other."""
        if not self._breaks:
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
        """Prints which files were written, many alike in a line."""
        alike: dict[tuple[pathlib.Path, str], list[pathlib.Path]] = {}
        for path in paths:
            alike.setdefault((path.parent, path.suffix), []).append(path)
        for (folder, suffix), files in alike.items():
            if len(files) > _FEW:
                names = name_ranges(file.name.removesuffix(suffix) for file in files)
                self.print(f"wrote {len(files)} files {folder / names}{suffix}")
            else:
                for file in files:
                    self.print(f"wrote {file}")

    def _lines(self, item: Any) -> list[Any]:
        return wrapped(printable(item), self.width) if self._breaks and isinstance(item, str) else [item]

    @property
    def _breaks(self) -> bool:
        """Whether texts are broken into lines: on a terminal, and where COLUMNS says how wide one would be."""
        return self.width < _ENDLESS

    def status(self, status: Any, **options: Any) -> Status:
        """Returns rich's status display (a spinner with a text); markup in the text isn't interpreted."""
        return super().status(Text(printable(status)), **options)

    def on_broken_pipe(self) -> None:
        """Raises the error of a broken pipe again, so that it is reported, instead of ending the process."""
        raise


def console(aside: bool = False) -> Pages:
    """Returns the console on standard output, or `aside` on standard error; off a terminal as wide as need be."""
    return _of(sys.stderr if aside else sys.stdout)


def progress() -> Pages:
    """Returns the console on standard error for progress bars and status texts; off a terminal it shows none."""
    return _of(sys.stderr)


def _of(stream: TextIO) -> Pages:
    width = None if stream.isatty() or "COLUMNS" in _sane() else _ENDLESS
    return Pages(file=stream, highlight=False, markup=False, emoji=False, width=width, _environ=_sane())


def _sane() -> dict[str, str]:
    """The environment, without sizes that no terminal has: these are as good as none."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _SIZES or (value.isdecimal() and len(value) <= _DIGITS and int(value) >= _LEAST)
    }


def printable(text: str, kept: str = "") -> str:
    r"""Returns a text with its control characters escaped, so that a file's text can't move the cursor or forge
    a line.

    >>> print(printable("a\x1b[2Jb\nc"))
    a\x1b[2Jb\nc
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in kept
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def printable_lines(text: str) -> str:
    r"""Returns a text with its control characters escaped, except for newlines and tabs.

    >>> print(printable_lines("a\x07\nb"))
    a\x07
    b
    """
    return printable(text, "\n\t")


class _PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def prepare_streams() -> None:
    """Prepares standard output and error: characters that they can't encode, and control characters of logs, are
    escaped. Raises click.ClickException if standard output is closed, or is a device that is full.
    """
    if sys.stderr is None:
        # What a library writes to standard error would end up in the next file that is opened.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it stays open
    if sys.stdout is None:
        raise click.ClickException("standard output is closed, but must be open; give >/dev/null to print nothing")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdout, io.TextIOWrapper) and isinstance(sys.stdout.buffer, io.BufferedWriter):
        with to_stdout():
            # A full device refuses this, too: better now than after minutes of planning.
            sys.stdout.buffer.raw.write(b"")
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PrintableFormatter())


@final
class _Unread(click.ClickException):
    """A pipe whose reader wants no more, as `head` after its lines: there is nobody to tell."""

    def __init__(self) -> None:
        super().__init__("standard output isn't read any more")

    def show(self, file: IO[Any] | None = None) -> None:
        """Shows nothing."""


@contextlib.contextmanager
def to_stdout() -> Iterator[None]:
    """Turns a failure to write standard output in a `with` block into click.ClickException, of which nothing is told
    where nobody reads the pipe any more; what follows is dropped.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            # The interpreter tries once more when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise _Unread from None
        raise click.ClickException(f"standard output can't be written: {error.strerror or error}") from None


def write_stdout(text: str) -> None:
    """Writes a text to standard output in UTF-8, whatever the terminal's encoding is."""
    with to_stdout():
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8"))
