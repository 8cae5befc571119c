"""Fitted figures of a device beside those from before, on stages of pipelines that neither was fitted to.

Programs that run alone start at once. A stage of a pipeline is started by the runtime, which sends and receives beside
it, so a fit to programs may be right on other programs and wrong on stages.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import final

from alpa_dejavu._util import units
from alpa_dejavu.calibration.operators import Program, operators
from alpa_dejavu.costs.latency import AnalyticLatency
from alpa_dejavu.problem import Device

__all__ = ["Judged", "stage_s"]


@final
class Judged:
    """How far off two sets of figures of a device are on stages that were measured.

    There are few stages, so fitted figures must be nearer by more than what chance makes of as many: the standard error
    of the mean difference.

    Args:
        before: the device with the figures from before.
        fitted: the device with fitted figures.
        stages: the measured seconds of each program as a stage; there may be none.
    """

    def __init__(self, before: Device, fitted: Device, stages: Mapping[Program, float]) -> None:
        was, now = (_errors(device, stages) for device in (before, fitted))
        self.before, self.fitted = (statistics.fmean(errors or [0.0]) for errors in (was, now))
        self._number = len(stages)
        nearer = [one - other for one, other in zip(was, now, strict=True)]
        self._by_chance = statistics.stdev(nearer) / math.sqrt(len(nearer)) if len(nearer) > 1 else 0.0

    @property
    def refused(self) -> str:
        """Returns why the figures from before stand; empty where fitted ones are nearer, or no stage was measured."""
        if self.before - self.fitted >= self._by_chance:
            return ""
        stages = units.counted(self._number, "stage")
        return (
            f"fitted figures are {self.fitted:.1%} off on {stages} of pipelines, those from before {self.before:.1%}"
            f"{', which may be chance' if self.fitted < self.before else ''}: these stand"
        )


def stage_s(program: Program, device: Device) -> float:
    """Returns the predicted seconds of a stage that is one program: its forward and its backward pass."""
    return AnalyticLatency().predict(operators(program), device).total_s + 2 * device.dispatch_s


def _errors(device: Device, stages: Mapping[Program, float]) -> list[float]:
    """Returns the absolute error on each stage, as a share of its measured seconds."""
    return [abs(stage_s(program, device) / seconds - 1) for program, seconds in stages.items()]
