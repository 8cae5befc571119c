"""Where commands print, how figures read, and what files they write."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
from typing import Any, TextIO, final

from rich.console import Console
from rich.status import Status
from rich.text import Text

from alpa_dejavu._cli.streams import printable, to_stdout
from alpa_dejavu._json_file import check_folder, write_whole
from alpa_dejavu.planning._result import PlanningResult

_WIDTH = 160


@final
class _Console(Console):
    """Shows text as it is but for its control characters: no markup, no pictures of words, nothing that acts."""

    def render_str(self, text: str, **options: Any) -> Text:
        """All text that is printed, in tables, too, comes by here."""
        return super().render_str(printable(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints; what keeps standard output from being written is told in a line."""
        with contextlib.nullcontext() if self.file is sys.stderr else to_stdout():
            super().print(*objects, **options)

    def status(self, status: Any, **options: Any) -> Status:
        """As rich has it, but for markup in what is going on."""
        return super().status(Text(printable(status)), **options)

    def on_broken_pipe(self) -> None:
        """Leaves it to `print`."""
        raise


def console() -> Console:
    """Of standard output; wide where it isn't a terminal, so that tables keep their rows."""
    return _of(sys.stdout, width=None if sys.stdout.isatty() else _WIDTH)


def progress() -> Console:
    """Of standard error, for what is going on; it shows nothing where that isn't a terminal."""
    return _of(sys.stderr)


def _of(stream: TextIO, width: int | None = None) -> Console:
    return _Console(file=stream, highlight=False, markup=False, emoji=False, width=width)


def seconds(value: float) -> str:
    """With a unit that makes the number readable.

    >>> [seconds(2.5), seconds(0.0125), seconds(3e-5), seconds(0.0)]
    ['2.5 s', '12.5 ms', '30 us', '0 s']
    """
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value == 0 or abs(value) * factor >= 1:
            return f"{value * factor:.4g} {unit}"
    return f"{value * 1e6:.4g} us"


def gibibytes(value: float) -> str:
    """In GiB, or MiB where that is less than a hundredth.

    >>> [gibibytes(2**34), gibibytes(2**20)]
    ['16.00 GiB', '1.00 MiB']
    """
    return f"{value / 2**30:.2f} GiB" if abs(value) >= 2**30 / 100 else f"{value / 2**20:.2f} MiB"


def check_outputs(*paths: pathlib.Path | None) -> None:
    """Raises ValueError for a file that can't be written, before anything is planned."""
    for path in paths:
        if path is not None:
            check_folder(path)


def write_outputs(
    planned: PlanningResult,
    json_path: pathlib.Path | None,
    python_path: pathlib.Path | None,
    html_path: pathlib.Path | None,
    trace_path: pathlib.Path | None,
) -> list[pathlib.Path]:
    """Writes what is asked for, each file whole; returns what was written."""
    texts: dict[pathlib.Path, str] = {}
    if json_path is not None:
        from alpa_dejavu.plan_file import plan_text

        texts[json_path] = plan_text(planned.plan)
    if python_path is not None:
        from alpa_dejavu.alpa_code import alpa_code

        texts[python_path] = alpa_code(planned.plan)
    if html_path is not None:
        from alpa_dejavu.report import html_report

        texts[html_path] = html_report(planned)
    if trace_path is not None:
        from alpa_dejavu.trace_events import trace_events

        texts[trace_path] = json.dumps(trace_events(planned.timeline, planned.plan))
    for path, text in texts.items():
        write_whole(path, text)
    return list(texts)
