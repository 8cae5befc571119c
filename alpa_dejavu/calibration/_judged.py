"""Fitted figures of a device beside those from before, on stages of pipelines that neither was fitted to.

Programs that run alone start at once. A stage of a pipeline is started by the runtime, which sends and receives beside
it, so a fit to programs may be right on other programs and wrong on stages.
"""

from __future__ import annotations

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

    Args:
        before: the device with the figures from before.
        fitted: the device with fitted figures.
        stages: the measured seconds of each program as a stage; there may be none.
    """

    def __init__(self, before: Device, fitted: Device, stages: Mapping[Program, float]) -> None:
        self.before, self.fitted = (_error(device, stages) for device in (before, fitted))
        self._number = len(stages)

    @property
    def refused(self) -> str:
        """Returns why the figures from before stand; empty where fitted ones are nearer, or no stage was measured."""
        if self.fitted <= self.before:
            return ""
        stages = units.counted(self._number, "stage")
        return (
            f"fitted figures are {self.fitted:.1%} off on {stages} of pipelines, those from before {self.before:.1%}: "
            "these stand"
        )


def stage_s(program: Program, device: Device) -> float:
    """Returns the predicted seconds of a stage that is one program: its forward and its backward pass."""
    return AnalyticLatency().predict(operators(program), device).total_s + 2 * device.dispatch_s


def _error(device: Device, stages: Mapping[Program, float]) -> float:
    """Returns the mean absolute error, as a share of the measured seconds."""
    errors = [abs(stage_s(program, device) / seconds - 1) for program, seconds in stages.items()]
    return statistics.fmean(errors) if errors else 0.0
