"""One run of a plan, as it is kept."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping
from typing import final

from alpa_dejavu._util.versions import installed_version
from alpa_dejavu.calibration.history.origin import Origin
from alpa_dejavu.problem import Plan, checks

MOST_STEPS = 1000
"""So many steps of a run are kept, the last ones."""


@final
@dataclasses.dataclass(frozen=True)
class StageSeconds:
    """The measured seconds of a stage in a run: for a micro-batch, and for what comes once a step.

    Attributes:
        forward_s, backward_s: the seconds that the stage is busy with the forward and with the backward pass of a
            micro-batch, starting, sending and receiving included.
        per_step_s: the seconds of what comes once a step.
        computing_s: the seconds of the computation and its collectives, forward and backward together, without
            starting, sending and receiving.
        predicted_computing_s: the seconds that were predicted for `computing_s`.
    """

    forward_s: float
    backward_s: float
    per_step_s: float
    computing_s: float
    predicted_computing_s: float

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            checks.not_negative("measured stage", field.name, getattr(self, field.name))


def _versions() -> Mapping[str, str]:
    return {name: installed_version(name) or "unknown" for name in ("alpa-dejavu", "jax")}


@final
@dataclasses.dataclass(frozen=True)
class PastRun:
    """A past run of a plan: the seconds that its step was predicted to take, and those that the steps took.

    Attributes:
        plan: the plan that ran; a file keeps it without its contingencies.
        origin: which model it ran, on which cluster, and which cost models predicted it.
        predicted_s: the predicted seconds of a step, before any correction by other runs.
        steps_s: the measured seconds of each step, after warming up.
        stages: the measured seconds of each stage; empty if stages weren't measured.
        when_s: when it ran, in seconds since 1970, UTC.
        versions: the versions of packages, by their names.

    Raises ValueError for seconds that aren't positive, for no steps, and for another number of stages than the plan's.
    """

    plan: Plan
    origin: Origin
    predicted_s: float
    steps_s: tuple[float, ...]
    stages: tuple[StageSeconds, ...] = ()
    when_s: float = dataclasses.field(default_factory=time.time)
    versions: Mapping[str, str] = dataclasses.field(default_factory=_versions, hash=False)

    def __post_init__(self) -> None:
        checks.positive("run", "predicted_s", self.predicted_s)
        if not self.steps_s:
            raise ValueError("run: no step was measured; run more steps than it takes to warm up")
        for step_s in self.steps_s:
            checks.positive("run", "steps_s", step_s)
        if self.stages and len(self.stages) != len(self.plan.stages):
            raise ValueError(f"run: {len(self.stages)} stages were measured, but the plan has {len(self.plan.stages)}")
        object.__setattr__(self, "steps_s", tuple(map(float, self.steps_s[-MOST_STEPS:])))

    @property
    def measured_s(self) -> float:
        """Returns the median seconds of the run's measured steps."""
        return statistics.median(self.steps_s)

    @property
    def ratio(self) -> float:
        """Returns the run's measured seconds of a step over the predicted ones."""
        return self.measured_s / self.predicted_s
