"""Bars of tqdm that are readable in a log, too."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO, final

if TYPE_CHECKING:
    from tqdm import tqdm

EVERY_S = 10.0
"""Where there is no terminal, a line is written so often."""


def progress_bar(stream: TextIO | None = None, **named: Any) -> tqdm[Any]:
    """Returns tqdm's bar, with what tqdm takes, for work that takes over two seconds; without a terminal it is a line
    every ten seconds. It is shown on standard error unless a stream is given.
    """
    from tqdm import tqdm

    stream = stream or sys.stderr
    shown, every_s = (stream, 1.0) if stream.isatty() else (_Lines(stream), EVERY_S)
    return tqdm(**{"file": shown, "mininterval": every_s, "maxinterval": EVERY_S, "delay": 2.0, **named})


@final
class _Lines:
    """A stream that writes what a bar draws as lines, in place of drawing over what it drew before."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        drawn = text.strip()
        if drawn:
            self._stream.write(f"{drawn}\n")

    def flush(self) -> None:
        self._stream.flush()
