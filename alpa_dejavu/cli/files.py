"""The files that a command writes: their paths are tried before any work, and written after all is printed."""

from __future__ import annotations

import json
import os
import pathlib
import stat
from typing import TYPE_CHECKING, Any, final

import click

from alpa_dejavu._util.extras import need
from alpa_dejavu._util.json_file import check_folder, descriptor, is_stream, unfinished, write_whole
from alpa_dejavu.cli.output import write_stdout

if TYPE_CHECKING:
    from alpa_dejavu.planning.changed.kept import Kept
    from alpa_dejavu.planning.result import PlanningResult
    from alpa_dejavu.problem import Plan

_STDOUT = pathlib.Path("-")
_TRIED_BYTES = 2**16


class _Output(click.Path):
    """A path; what stands for standard output, as /dev/stdout, becomes `-`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> pathlib.Path:
        path = pathlib.Path(os.fsdecode(super().convert(value, param, ctx)))
        return _STDOUT if path != _STDOUT and descriptor(path) == 1 else path


@final
class _Page(_Output):
    """A page of HTML, which is drawn by an extra: what lacks it says so before any work."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> pathlib.Path:
        need("plots", "plotly")
        return super().convert(value, param, ctx)


OUTPUT = _Output(path_type=pathlib.Path, dir_okay=False, readable=False, allow_dash=True)
"""A file that is written, or `-` for standard output."""

PAGE = _Page(path_type=pathlib.Path, dir_okay=False, readable=False, allow_dash=True)
"""The same for a page of HTML."""


def check_outputs(*paths: pathlib.Path | None) -> None:
    """Checks that output files (None: no file) can be written, before any work; what is in them is left as it is.
    Raises ValueError if a file can't be written, or is given twice.
    """
    outputs = [path for path in paths if path is not None]
    for path in outputs:
        if path != _STDOUT:
            _try(path)
    real = [path if path == _STDOUT else pathlib.Path(os.path.realpath(path)) for path in outputs]
    for n, path in enumerate(outputs):
        if real[n] in real[:n]:
            raise ValueError(f"the output {path} is given twice, but must be given once; give each output its own path")


def takes_stdout(*paths: pathlib.Path | None) -> bool:
    """Returns whether one of the output paths is standard output, so that text for people must go to standard error."""
    return _STDOUT in paths


def kept_beside(path: pathlib.Path | None) -> tuple[pathlib.Path, ...]:
    """Returns the paths that are written beside a plan's file for planning again; none beside a stream."""
    from alpa_dejavu.planning.changed.kept import kept_files

    return () if path is None or path == _STDOUT or is_stream(path) else kept_files(path)


def write_output(path: pathlib.Path, text: str) -> list[pathlib.Path]:
    """Writes a text to an output, atomically if it is a file; returns the list of files that were written."""
    if path == _STDOUT:
        write_stdout(text)
        return []
    write_whole(path, text)
    return [path]


def write_pair(plan: Plan, kept: Kept | None, path: pathlib.Path) -> tuple[list[pathlib.Path], str]:
    """Writes a plan, and beside a file what planning again needs; returns the files, and why nothing was kept."""
    from alpa_dejavu.planning.changed.kept import write_with_kept
    from alpa_dejavu.plans.plan_file import plan_text

    if path == _STDOUT:
        return write_output(path, plan_text(plan)), ""
    pair = write_with_kept(plan, kept, path)
    return list(pair.files), pair.lacking


def write_outputs(
    planned: PlanningResult,
    json_path: pathlib.Path | None,
    python_path: pathlib.Path | None,
    html_path: pathlib.Path | None,
    trace_path: pathlib.Path | None,
    steps: int | None = None,
) -> list[pathlib.Path]:
    """Writes a planning result to each output that is given (JSON, Python, HTML, trace); returns the files written."""
    written = []
    if json_path is not None:
        from alpa_dejavu.plans.plan_file import plan_text

        written += write_output(json_path, plan_text(planned.plan))
    if python_path is not None:
        from alpa_dejavu.exports.alpa_code import alpa_code

        written += write_output(python_path, alpa_code(planned.plan))
    if html_path is not None:
        from alpa_dejavu.report import html_report

        written += write_output(html_path, html_report(planned, steps=steps))
    if trace_path is not None:
        from alpa_dejavu.report.trace_events import trace_events

        written += write_output(trace_path, json.dumps(trace_events(planned.timeline, planned.plan)))
    return written


def _try(path: pathlib.Path) -> None:
    """Raises ValueError if a path couldn't be written; a pipe isn't opened, as that would wait for its reader."""
    try:
        number = descriptor(path)
        if number is not None:
            os.write(number, b"")
            return
        mode = _mode(path)
        if mode is not None and stat.S_ISDIR(mode):
            raise ValueError(f"the output {str(path)!r} is a folder, but must be a file; give a file's name in it")
        if mode is not None and not os.access(path, os.W_OK):
            raise ValueError(f"{path} can't be written: it is read-only; make it writable, or give another path")
        if mode is None or not is_stream(path):
            target = pathlib.Path(os.path.realpath(path))
            check_folder(target)
            with unfinished(target) as trial:
                trial.write(b" " * _TRIED_BYTES)
        elif stat.S_ISCHR(mode):
            with open(path, "wb", buffering=0) as device:
                device.write(b"")
    except OSError as error:
        why = error.strerror or error
        raise ValueError(f"{path} can't be written: {why}; give another path, or make room") from None


def _mode(path: pathlib.Path) -> int | None:
    """Returns the mode of what is at a path, if anything; OSError for a link to itself, or what can be no name."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
