"""Measured peaks of stages in place of the count, and what they say of the stages that weren't measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from alpa_dejavu.costs.memory import StageMemory, successors_that_fit
from alpa_dejavu.costs.memory_margin import ALPA, MEMORY_PARTS, MemoryMargin, MemoryResiduals
from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.problem import Run, StageChoice, checks

_FEWEST = 3
"""Peaks of a run that say something of its other stages where nothing else does."""


@final
@dataclasses.dataclass(frozen=True)
class StageMeasurement:
    """A measurement of a stage that ran alone on its submesh: the seconds of its forward and backward pass for one
    micro-batch, and the peak memory of each device with one in flight; None where it wasn't measured.
    """

    seconds: float
    peak_bytes: float | None = None

    def __post_init__(self) -> None:
        checks.positive("measured stage", "seconds", self.seconds)
        if self.peak_bytes is not None:
            checks.positive("measured stage", "peak_bytes", self.peak_bytes)


def log_ratio(table: CostTable, run: Run, stage: StageChoice, peak_bytes: float) -> float | None:
    """Returns the logarithm of a stage's measured peak memory, with one micro-batch in flight, over the peak that is
    counted from its tensors (the analytic count of the table's memory); None where that count is zero.
    """
    memory = table.memory[stage.submesh][stage.config]
    assert memory is not None, "a stage that was measured is one that the search space offers"
    counted = float(memory.peak(min(run.in_flight(0), 1))[stage.first, stage.last])
    return math.log(peak_bytes / counted) if counted > 0 else None


def with_peaks(table: CostTable, run: Run, log_ratios: Mapping[StageChoice, float], margin: MemoryMargin) -> CostTable:
    """Returns the cost table in which measured peaks replace the peaks counted from tensors (the analytic count) for
    the measured stages; `log_ratios` has the logarithms of measured over counted ones.

    How many stages may follow each stage is computed anew: for measured stages from their peaks, for all others from
    the analytic count and the margin. All kinds of a measured stage's bytes are multiplied by one factor, since only
    their peak is known.
    """
    usable = table.usable_bytes if margin.residuals is None else table.memory_limit_bytes
    successors, memory = np.array(table.successors(run, margin, usable)), [list(row) for row in table.memory]
    for s, c in dict.fromkeys((stage.submesh, stage.config) for stage in log_ratios):
        own = {n: ratio for n, ratio in log_ratios.items() if (n.submesh, n.config) == (s, c)}
        counted = table.memory[s][c]
        assert counted is not None, "a stage that was measured is one that the search space offers"
        memory[s][c] = measured = _with_own(counted.mapped(np.array), own)
        fitting = successors_that_fit(measured, table.limits(s, float(table.memory_limit_bytes[s])), run)
        for stage in own:
            successors[stage.entry] = fitting[stage.first, stage.last]
    kept = tuple(map(tuple, memory))
    return dataclasses.replace(table, memory=kept, max_n_succ_stages=successors, usable_bytes=usable, margin=margin)


def _with_own(counted: StageMemory, log_ratios: Mapping[StageChoice, float]) -> StageMemory:
    """With so many times the count where it was measured."""
    kinds = {kind: getattr(counted, kind).copy() for kind in MEMORY_PARTS}
    for stage, ratio in log_ratios.items():
        for values in kinds.values():
            values[stage.first, stage.last] *= math.exp(ratio)
    return dataclasses.replace(counted, **kinds)


def margin_with(margin: MemoryMargin, log_ratios: Sequence[float]) -> MemoryMargin:
    """Returns the memory margin with more residuals: the logarithms of measured over counted peaks of the stages that
    were measured while planning. A margin without residuals needs three, each of which then counts as a group, since
    they are to tell how far other stages of the same model are off.

    >>> margin_with(MemoryMargin(), [0.1, 0.2]).residuals is None
    True
    >>> margin_with(MemoryMargin(), [0.1, 0.2, 0.3]).residuals.num_groups
    3
    """
    residuals, own, of_run = margin.residuals, tuple(log_ratios), "stages measured while planning"
    if not own or (residuals is None and len(own) < _FEWEST):
        return margin
    if residuals is None:
        return dataclasses.replace(margin, residuals=MemoryResiduals({"peak": own}, len(own), of_run))
    joined = MemoryResiduals(
        {kind: (*ratios, *own) for kind, ratios in residuals.log_ratios.items()},
        residuals.num_groups + 1,
        f"{residuals.origin}, and {of_run}" if residuals.origin else of_run,
        ALPA if residuals.is_ours else f"{residuals.framework} and {ALPA}",
    )
    return dataclasses.replace(margin, residuals=joined)
