"""Reads the steps that Megatron-LM and torchtitan log: seconds or tokens a second, and memory."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import statistics
from typing import final

from alpa_dejavu._util import units

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_MEGATRON = re.compile(r"iteration\s+(\d+)/\s*\d+ .*?elapsed time per iteration \(ms\):\s*([\d.]+)")
_MEGATRON_MEMORY = re.compile(r"max allocated:\s*([\d.]+)")
_TORCHTITAN = re.compile(r"\bstep:\s*(\d+)\s.*?memory:\s*([\d.]+)GiB.*?tps:\s*([\d,.]+)")
_MOST_BYTES = 256 * 2**20
_STARTED = 2
"""The first steps of a log compile, and fill caches: so many are left out where there are more than twice as many."""


@final
@dataclasses.dataclass(frozen=True)
class StepLog:
    """The median step of a log, in seconds or in tokens a second of a device, and the peak of memory.

    Attributes:
        steps: how many steps the median is of.
        memory_bytes: the highest peak that any rank logged; None: none did.
    """

    framework: str
    steps: int
    step_s: float | None
    device_tokens_per_s: float | None
    memory_bytes: float | None


def is_log(path: pathlib.Path) -> bool:
    """Returns whether a file is taken for a log, by its name."""
    return path.suffix in (".log", ".txt", ".out")


def read_log(path: pathlib.Path) -> StepLog:
    """Reads the log of a training run.

    Raises:
        ValueError: if no line is a step of Megatron-LM or torchtitan, or the file is larger than 256 MiB.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} is larger than {units.size(_MOST_BYTES)}; give a part of the log with some steps")
    text = _ESCAPES.sub("", path.read_text(encoding="utf-8", errors="replace"))
    milliseconds = {int(step): float(lasts) for step, lasts in _MEGATRON.findall(text)}
    tokens = {int(step): float(tps.replace(",", "")) for step, _, tps in _TORCHTITAN.findall(text)}
    if milliseconds:
        peaks = [float(megabytes) * 2**20 for megabytes in _MEGATRON_MEMORY.findall(text)]
        kept = _steady(milliseconds)
        return StepLog("megatron", len(kept), statistics.median(kept) * 1e-3, None, max(peaks, default=None))
    if tokens:
        kept = _steady(tokens)
        peak = max(float(gibibytes) for _, gibibytes, _ in _TORCHTITAN.findall(text)) * 2**30
        return StepLog("torchtitan", len(kept), None, statistics.median(kept), peak)
    raise ValueError(
        f"{path} has no step that Megatron-LM or torchtitan logs ('elapsed time per iteration', 'tps'); give a log of "
        "one of these, or a profiler's trace"
    )


def _steady(by_step: dict[int, float]) -> list[float]:
    values = [by_step[step] for step in sorted(by_step)]
    return values[_STARTED:] if len(values) > 2 * _STARTED else values
