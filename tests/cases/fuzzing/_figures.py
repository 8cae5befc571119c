"""Figures of a file that was accepted, by themselves: whether they contradict one another, by the half or more."""

from __future__ import annotations

import itertools
import json
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any

_LOOSE = 2.0


def contradictions_in(path: pathlib.Path) -> Iterator[str]:
    """Yields what is wrong with the figures of a plan's file, of what is kept beside one, or of a scenario's runs."""
    content = path.read_bytes()
    # What follows the compressed data is nobody's.
    data = json.loads(zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(content) if path.suffix == ".gz" else content)
    if "kept" in path.name:
        yield from _below_zero(data, "")
    elif "stages" in data:
        yield from _of_plan(data)
    elif "runs" in data:
        for run in data["runs"]:
            if any(later < earlier for earlier, later in itertools.pairwise(run["time_s"])):
                yield "times of a run fall"


def _of_plan(data: Any) -> Iterator[str]:
    step_s, stages = data["iteration_time_s"], data["stages"]
    if data.get("lower_bound_s", 0.0) > _LOOSE * step_s:
        yield "the lower bound is above the step"
    for stage in stages:
        both_s = stage["forward_s"] + stage["backward_s"]
        if _LOOSE * step_s < data["num_micro_batches"] * both_s:
            yield "the step is shorter than a stage's micro-batches"
        if stage.get("collective_s", 0.0) > _LOOSE * both_s:
            yield "collectives take longer than their stage"
        if stage.get("compute_s", 0.0) > _LOOSE * both_s:
            yield "computing takes longer than its stage"
        if stage.get("synchronisation_s", 0.0) > _LOOSE * stage["per_step_s"]:
            yield "synchronising takes longer than all that happens once a step"
        if _LOOSE * stage["memory_bytes"] < stage.get("resident_bytes", 0.0):
            yield "a stage keeps more than its memory's peak"


def _below_zero(data: Any, name: str) -> Iterator[str]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _below_zero(value, key)
    elif isinstance(data, list):
        for value in data:
            yield from _below_zero(value, name)
    elif name.endswith(("bytes", "flop")) and isinstance(data, (int, float)) and data < 0:
        yield f"{name} is below zero"
