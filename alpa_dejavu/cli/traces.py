"""The traces that a command is given: files of ranks, or folders of them."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alpa_dejavu.calibration.traces import MeasuredStep

_SUFFIXES = (".json", ".json.gz")
"""The files that are taken from a folder; the XPlane that jax writes beside its JSON says the same."""


def traced_steps(traces: Sequence[pathlib.Path]) -> tuple[list[MeasuredStep], list[str]]:
    """Returns the steps of all files, and what these lack; ValueError for two files of one rank."""
    from alpa_dejavu.calibration.traces import measured_steps, read_trace

    steps: list[MeasuredStep] = []
    notes: list[str] = []
    source: dict[int, pathlib.Path] = {}
    for file in _files(traces):
        own, lacking = measured_steps(read_trace(file))
        for rank in {step.rank for step in own}:
            if source.setdefault(rank, file) != file:
                raise ValueError(f"rank {rank} is in {source[rank]} and in {file}; give the traces of one run")
        steps.extend(own)
        notes.extend(lacking)
    return steps, notes


def _files(traces: Sequence[pathlib.Path]) -> list[pathlib.Path]:
    files = []
    for path in traces:
        if not path.exists():
            raise ValueError(f"there is no trace {path}; give a profiler's file, or a folder of them")
        own = sorted(file for file in path.rglob("*") if file.name.endswith(_SUFFIXES)) if path.is_dir() else [path]
        if not own:
            raise ValueError(f"{path} is a folder without a trace (*.json or *.json.gz); give the profiler's files")
        files.extend(own)
    return files
