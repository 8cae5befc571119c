"""The plan's step where stages gather the gradients of all replicas for a rule, and the front of tolerant plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

from alpa_dejavu._util import ties
from alpa_dejavu.planning.result import PricedPlan
from alpa_dejavu.problem import Plan
from alpa_dejavu.simulation.plan_times import PlanStep, plan_times


@final
@dataclasses.dataclass(frozen=True)
class TolerantPlan:
    """A plan with the number of wrong replicas of each stage that do no harm."""

    priced: PricedPlan  # the plan, with the price of a step without a rule
    wrong: int  # how many replicas of each stage may be wrong
    step_s: float  # the seconds of a step, in which gradients are gathered for the rule if any may be wrong
    price: float  # the price of such a step

    def no_worse(self, other: TolerantPlan) -> bool:
        """Returns whether this plan is as fast, as cheap and as tolerant as another one."""
        most = 1 + ties.TOLERANCE
        return self.step_s <= other.step_s * most and self.price <= other.price * most and self.wrong >= other.wrong


def gathering_step_s(plan: Plan) -> float:
    """Returns the seconds of a plan's step if its stages gather gradients where they add them up now: each of N devices
    takes in N - 1 times the bytes of its gradients, in place of 2 (N - 1) / N times those by a ring. What the rule
    computes isn't in it.
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


def tolerant_front(fronts: Mapping[int, Sequence[PricedPlan]]) -> tuple[TolerantPlan, ...]:
    """Returns the Pareto front by step time, price and tolerated wrong replicas, those that tolerate fewest first, and
    then the fastest, of the plans that have enough replicas for so many wrong ones.
    """
    front = list[TolerantPlan]()
    for wrong in sorted(fronts, reverse=True):
        plans = []
        for priced in fronts[wrong]:
            step_s = gathering_step_s(priced.plan) if wrong else priced.plan.step_s
            plans.append(TolerantPlan(priced, wrong, step_s, priced.price * step_s / priced.plan.step_s))
        for tolerant in ties.ordered(ties.ordered(plans, key=lambda plan: plan.price), key=lambda plan: plan.step_s):
            if not any(other.no_worse(tolerant) for other in front):
                front.append(tolerant)
    return tuple(sorted(front, key=lambda tolerant: tolerant.wrong))
