"""Past runs that are made up, for tests of the history."""

import dataclasses

from alpa_dejavu.calibration.history import Origin, PastRun
from plans import example_plan, stage

ORIGIN = Origin("a model", "a cluster", "V100", "AnalyticLatency + AlphaBeta")


def computing_plan(name="alone", layers=4, **changes):
    """One stage that does nothing but compute: a step of 0.1 s."""
    quiet = {"collective_s": 0.0, "boundary_s": 0.0, "per_step_s": 0.0, "synchronisation_s": 0.0}
    times = {"compute_s": 0.025, "forward_s": 0.01, "backward_s": 0.015, "forward_collective_s": 0.0}
    only = stage((0, layers - 1), **quiet, **times, forward_boundary_s=0.0)
    return example_plan(**({"stages": (only,), "step_s": 0.1, "lower_bound_s": 0.1, "model": name} | changes))


def run_of(plan=None, ratio=1.0, when_s=1.7e9, **origin):
    plan = example_plan() if plan is None else plan
    predicted = plan.uncorrected_s
    return PastRun(
        plan,
        dataclasses.replace(ORIGIN, **origin),
        predicted,
        tuple(ratio * predicted * extra for extra in (0.99, 1.0, 1.02)),
        when_s=when_s,
        versions={"alpa-dejavu": "0.1.0", "jax": "0.4.30"},
    )
