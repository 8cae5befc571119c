"""Runs as they come: of a plan that was measured, and the steps of an executable of Alpa's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from alpa_dejavu.communication import CommunicationModel
from alpa_dejavu.history._origin import Origin
from alpa_dejavu.history._run import PastRun, StageSeconds
from alpa_dejavu.latency import LatencyModel

if TYPE_CHECKING:
    from alpa_dejavu.calibration import Calibration
    from alpa_dejavu.measurement import Measured
    from alpa_dejavu.planning._result import PlanningResult


def past_run(
    planned: PlanningResult,
    found: Measured,
    latency: str | LatencyModel = "analytic",
    communication: str | CommunicationModel = "alpha-beta",
    calibration: Calibration | None = None,
) -> PastRun:
    """What was measured of a plan.

    Args:
        planned: the plan, predicted for the cluster that it ran on.
        found: what it took there.
        latency: the model that predicted it.
        communication: likewise.
        calibration: that they are from, if they are from one.
    """
    stages = zip(planned.timeline.stages, found.stages, found.computing_s, strict=True)
    return PastRun(
        plan=planned.plan,
        origin=Origin.of(planned.model, planned.cluster, latency, communication, calibration),
        predicted_s=planned.plan.uncorrected_s,
        steps_s=found.steps_s,
        stages=tuple(
            StageSeconds(
                forward_s=measured.forward_s,
                backward_s=measured.backward_s,
                per_step_s=measured.per_step_s,
                computing_s=sum(computing),
                predicted_computing_s=predicted.forward_s + predicted.backward_s,
            )
            for predicted, measured, computing in stages
        ),
    )


def record(executable: Any) -> int:
    """Appends the steps that an executable has run and that aren't in its history yet, not waiting for Alpa's shutdown.

    Alpa's workers time their steps; they answer when the steps before are done, so this waits for those.

    Args:
        executable: what `parallelized_step.get_executable(...)` returns, compiled with
            `DejavuStageOption(history=...)`.

    Returns:
        How many steps were appended, those to warm up left out.

    Raises:
        ValueError: the executable keeps no history, or the file can't be written.
        RuntimeError: Alpa doesn't wait for steps, so what it times isn't what they take.
    """
    from alpa_dejavu._alpa._recorder import record_steps

    return record_steps(executable)
