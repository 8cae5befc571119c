"""Past runs as observations of log(measured / predicted): repeated runs of a plan are one, counted as many times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.calibration.history._run import PastRun
from alpa_dejavu.calibration.history.origin import plan_key
from alpa_dejavu.problem import Plan

Array = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Observations:
    """Observations of past runs, N rows of them.

    Attributes:
        log_ratio: shape (N,), the mean over the runs of a plan.
        counts: shape (N,), how many runs that is.
        shares: shape (N, 4), where the predicted time goes.
        places: of each row its cluster, model and plan.
        squares_within: the sum over runs of squared differences to their plan's mean.
    """

    log_ratio: Array
    counts: Array
    shares: Array
    places: tuple[tuple[str, str, str], ...]
    squares_within: float


def observations(runs: Sequence[PastRun], shares_of: Callable[[Plan], Array]) -> Observations:
    """Returns observations of whole steps, and of the computing of stages where that was measured."""
    found: dict[tuple[str, str, str, bool], list[float]] = {}
    shares: dict[tuple[str, str, str, bool], Array] = {}
    for run in runs:
        place = run.origin.cluster, run.origin.model, plan_key(run.plan)
        found.setdefault((*place, False), []).append(float(np.log(run.ratio)))
        shares.setdefault((*place, False), shares_of(run.plan))
        computing = sum(stage.computing_s for stage in run.stages)
        predicted = sum(stage.predicted_computing_s for stage in run.stages)
        if computing > 0 and predicted > 0:
            found.setdefault((*place, True), []).append(float(np.log(computing / predicted)))
            shares.setdefault((*place, True), _of_computing(run.plan))
    ratios = [np.array(each) for each in found.values()]
    return Observations(
        log_ratio=np.array([each.mean() for each in ratios]),
        counts=np.array([float(len(each)) for each in ratios]),
        shares=np.array([shares[key] for key in found]),
        places=tuple(key[:3] for key in found),
        squares_within=float(sum(((each - each.mean()) ** 2).sum() for each in ratios)),
    )


def _of_computing(plan: Plan) -> Array:
    """Returns which shares of the stages' computing are operators and collectives, shape (4,): by parts of a step."""
    operators = sum(stage.compute_s for stage in plan.stages)
    collectives = sum(stage.collective_s for stage in plan.stages)
    total = operators + collectives
    return np.array([operators, collectives, 0.0, 0.0]) / total if total > 0 else np.array([1.0, 0.0, 0.0, 0.0])
