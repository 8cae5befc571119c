"""The price of a step in money, and the plans for which no other is both as fast and as cheap."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

from alpa_dejavu._util import ties
from alpa_dejavu.problem import Cluster, Plan
from alpa_dejavu.simulation.breakdown import why_slower

__all__ = ["PricedPlan", "as_cheap", "check_prices", "front", "ordered", "price_per_step", "why_not"]


@final
@dataclasses.dataclass(frozen=True)
class PricedPlan:
    """A plan, with the price of its expected step, in US dollars as the hosts' hourly prices."""

    plan: Plan
    price: float

    @property
    def hosts(self) -> tuple[str, ...]:
        """Returns the names of the hosts that the plan uses."""
        return tuple(dict.fromkeys(name for stage in self.plan.stages for name in stage.hosts))


def check_prices(cluster: Cluster) -> None:
    """Checks that the hourly price of each host of a cluster is known.

    Raises:
        ValueError: some hosts have no price; names them.
    """
    unknown = [host.name for host in cluster.hosts if host.price_per_hour is None]
    if unknown:
        raise ValueError(
            f"no price is known of {', '.join(unknown)} of the cluster {cluster.name}; give each host its "
            "price_per_hour, or plan for the objective 'time'"
        )


def price_per_step(plan: Plan, cluster: Cluster) -> float | None:
    """Returns the price of a plan's expected step, paying for each host it uses as a whole; None if one isn't known."""
    prices = {host.name: host.price_per_hour for host in cluster.hosts}
    hourly = [prices.get(name) for name in {name for stage in plan.stages for name in stage.hosts}]
    known = [price for price in hourly if price is not None]
    return plan.expected_s * sum(known) / 3600 if len(known) == len(hourly) else None


def front(plans: Sequence[Plan], cluster: Cluster) -> tuple[PricedPlan, ...]:
    """Returns the Pareto front of plans by step time and price per step, the fastest plan first."""
    priced = [PricedPlan(plan, price) for plan in plans if (price := price_per_step(plan, cluster)) is not None]
    found: list[PricedPlan] = []
    by_price = ties.ordered(priced, key=lambda one: one.price)
    for one in ties.ordered(by_price, key=lambda one: one.plan.step_s):
        if not found or one.price < found[-1].price * (1 - ties.TOLERANCE):
            found.append(one)
    return tuple(found)


def why_not(plan: Plan, best: Plan, cluster: Cluster, objective: str) -> str:
    """Returns in a few words why a plan loses against the best one: how much dearer it is if the objective is "price",
    else what makes its step longer.
    """
    prices = price_per_step(plan, cluster), price_per_step(best, cluster)
    if objective != "price" or not prices[0] or not prices[1]:
        return why_slower(plan, best)
    more, longer = prices[0] / prices[1] - 1, plan.step_s / best.step_s - 1
    return f"{100 * more:.1f} % dearer, and a step takes {abs(100 * longer):.1f} % {'less' if longer < 0 else 'longer'}"


def ordered(plans: Sequence[Plan], cluster: Cluster, objective: str) -> list[int]:
    """Returns the indices of plans from best to worst: by price per step or by seconds, as the objective says."""
    if objective == "price":
        return ties.ordered(range(len(plans)), key=lambda n: price_per_step(plans[n], cluster) or 0.0)
    return ties.ordered(range(len(plans)), key=lambda n: plans[n].step_s)


def as_cheap(plans: Sequence[Plan], others: Sequence[int], first: int, cluster: Cluster) -> list[int]:
    """Returns the indices of those other plans whose hosts cost no more per hour than those of the first plan."""
    hourly = [(price_per_step(plan, cluster) or 0.0) / plan.expected_s for plan in plans]
    return [n for n in others if hourly[n] <= hourly[first] * (1 + ties.TOLERANCE)]
