"""Makes a record for the history of past runs, of a plan that was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu.calibration.history import PastRun, StageSeconds
from alpa_dejavu.calibration.history.origin import Origin
from alpa_dejavu.costs.communication import CommunicationModel
from alpa_dejavu.costs.latency import LatencyModel

if TYPE_CHECKING:
    from alpa_dejavu.calibration import Calibration
    from alpa_dejavu.calibration.measurement import Measured
    from alpa_dejavu.planning.result import PlanningResult


def past_run(
    planned: PlanningResult,
    found: Measured,
    latency: str | LatencyModel = "analytic",
    communication: str | CommunicationModel = "alpha-beta",
    calibration: Calibration | None = None,
) -> PastRun:
    """Returns a plan's measured run, with what was predicted for it, as the history of past runs stores it.

    Args:
        planned: the plan, predicted for the cluster that it ran on.
        found: the measured seconds of its steps and stages on that cluster.
        latency: the latency model that predicted it, or its name.
        communication: the communication model that predicted it, or its name.
        calibration: the calibration that both models are from; None: they are from none.
    """
    stages = zip(planned.timeline.computing_s, found.stages, found.computing_s, strict=True)
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
                predicted_computing_s=predicted,
            )
            for predicted, measured, computing in stages
        ),
    )
