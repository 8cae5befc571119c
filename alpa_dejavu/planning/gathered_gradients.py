"""A plan's step where each stage gathers the gradients of all its replicas, for a rule that looks at each of them."""

from __future__ import annotations

import dataclasses

from alpa_dejavu.problem import Plan
from alpa_dejavu.simulation.plan_times import PlanStep, plan_times

__all__ = ["gathering_step_s"]


def gathering_step_s(plan: Plan) -> float:
    """Returns the seconds of a plan's step if its stages gather gradients where they add them up now.

    Each of N data-parallel devices then takes in N - 1 times the bytes of its gradients, in place of 2 (N - 1) / N
    times those by a ring: N / 2 times as many. What the rule itself computes, and more forward passes for Zeno, aren't
    in it.

    Args:
        plan: the plan; the first length of a stage's logical mesh is its number of replicas.
    """
    times = [
        dataclasses.replace(
            time,
            per_step_s=time.per_step_s + (factor - 1) * time.synchronisation_s,
            synchronisation_s=factor * time.synchronisation_s,
        )
        for time, stage in zip(plan_times(plan), plan.stages, strict=True)
        for factor in [max(stage.logical_mesh[0] / 2, 1.0)]
    ]  # fmt: skip
    return PlanStep(plan).seconds(tuple(times))
