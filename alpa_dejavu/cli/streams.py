"""The standard streams: what reaches a terminal, and what is said where they can't be written."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator

import click


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
    """Prepares standard output and standard error: characters that they can't encode are escaped, and so are control
    characters in logged messages.

    Raises:
        click.ClickException: standard output is closed, or is a device that is full.
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


@contextlib.contextmanager
def to_stdout() -> Iterator[None]:
    """Turns a failure to write standard output in a `with` block into an error of one line; whatever else is written
    there is then dropped.

    Raises:
        click.ClickException: standard output can't be written.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            # The interpreter tries once more when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.ClickException(f"standard output can't be written: {error.strerror or error}") from None


def write_stdout(text: str) -> None:
    """Writes a text to standard output in UTF-8, whatever the terminal's encoding is."""
    with to_stdout():
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8"))
