"""What a step costs in money, and plans on fewer hosts, which may cost less of it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from alpa_dejavu import _ties
from alpa_dejavu._kinds import members_of_kinds
from alpa_dejavu.breakdown import why_slower
from alpa_dejavu.planned import PricedPlan
from alpa_dejavu.problem import Cluster, Plan
from alpa_dejavu.search import Candidate, simulated, sliced
from alpa_dejavu.slicing import Slicer

__all__ = [
    "as_cheap", "check_prices", "front", "numbers_of_hosts", "on_fewer_hosts", "ordered", "price_per_step", "why_not",
]  # fmt: skip

_ALL, _TABLES = 64, 3
"""Up to so many choices of hosts are all tried; and so many of the best tables with each."""


def check_prices(cluster: Cluster) -> None:
    """Whether each host's price is known.

    Raises:
        ValueError: it isn't; names the hosts.
    """
    unknown = [host.name for host in cluster.hosts if host.price_per_hour is None]
    if unknown:
        raise ValueError(
            f"no price is known of {', '.join(unknown)} of the cluster {cluster.name}; give each host its "
            "price_per_hour, or plan for the objective 'time'"
        )


def price_per_step(plan: Plan, cluster: Cluster) -> float | None:
    """Of all hosts that a plan uses, whole, however many of their devices it takes; None where one isn't known."""
    prices = {host.name: host.price_per_hour for host in cluster.hosts}
    hourly = [prices.get(name) for name in {name for stage in plan.stages for name in stage.hosts}]
    known = [price for price in hourly if price is not None]
    return plan.step_s * sum(known) / 3600 if len(known) == len(hourly) else None


def front(plans: Sequence[Plan], cluster: Cluster) -> tuple[PricedPlan, ...]:
    """Those plans of which no other is both as fast and as cheap, the fastest first."""
    priced = [PricedPlan(plan, price) for plan in plans if (price := price_per_step(plan, cluster)) is not None]
    found: list[PricedPlan] = []
    by_price = _ties.ordered(priced, key=lambda one: one.price)
    for one in _ties.ordered(by_price, key=lambda one: one.plan.step_s):
        if not found or one.price < found[-1].price * (1 - _ties.TOLERANCE):
            found.append(one)
    return tuple(found)


def why_not(plan: Plan, best: Plan, cluster: Cluster, objective: str) -> str:
    """Why a plan loses."""
    prices = price_per_step(plan, cluster), price_per_step(best, cluster)
    if objective != "price" or not prices[0] or not prices[1]:
        return why_slower(plan, best)
    more, longer = prices[0] / prices[1] - 1, plan.step_s / best.step_s - 1
    return f"{100 * more:.1f} % dearer, and a step takes {abs(100 * longer):.1f} % {'less' if longer < 0 else 'longer'}"


def ordered(plans: Sequence[Plan], cluster: Cluster, objective: str) -> list[int]:
    """The numbers of the plans, the best one first."""
    if objective == "price":
        return _ties.ordered(range(len(plans)), key=lambda n: price_per_step(plans[n], cluster) or 0.0)
    return _ties.ordered(range(len(plans)), key=lambda n: plans[n].step_s)


def as_cheap(plans: Sequence[Plan], others: Sequence[int], first: int, cluster: Cluster) -> list[int]:
    """Those on hosts that cost no more than the chosen plan's: among them the fastest is the cheapest."""
    hourly = [(price_per_step(plan, cluster) or 0.0) / plan.step_s for plan in plans]
    return [n for n in others if hourly[n] <= hourly[first] * (1 + _ties.TOLERANCE)]


def on_fewer_hosts(found: Sequence[Candidate], cluster: Cluster, slicer: Slicer) -> list[Candidate]:
    """The best plans, simulated, by the same costs with fewer hosts of each kind.

    Args:
        found: with all hosts, the best first.
        cluster: of the hosts.
        slicer: the search.
    """
    tables = {id(one.table): one for one in reversed(found)}
    kept = _ties.ordered(tables.values(), key=lambda one: one.step_s)[:_TABLES]
    more = []
    for hosts in numbers_of_hosts(cluster):
        for one in kept:
            problem = one.table.slicing_problem(cluster, one.space, one.run, hosts)
            found_there = sliced(problem, one.space, cluster, slicer)
            if found_there.found:
                other = dataclasses.replace(one, slicing=found_there, timeline=None, hosts=None)
                more.append(simulated(other, cluster))
    return more


def numbers_of_hosts(cluster: Cluster) -> list[tuple[int, ...]]:
    """Of each kind of host how many to plan for, but not all: every choice where there are few.

    Where there are many, one host less at a time is left: of the kinds that cost most for what they compute, and of
    the slowest kinds.

    >>> from alpa_dejavu.clusters import named_cluster
    >>> numbers_of_hosts(named_cluster("p3.16xlarge", 4))
    [(1,), (2,), (3,)]
    """
    members = members_of_kinds(cluster)
    whole = tuple(map(len, members))
    choices = 1
    for count in whole:
        choices *= count + 1
    if choices <= _ALL:
        return [counts for counts in itertools.product(*(range(n + 1) for n in whole)) if any(counts)][:-1]
    first = [cluster.hosts[hosts[0]] for hosts in members]
    rates = [host.num_devices * host.device.rate("float32") for host in first]
    dearest = sorted(range(len(first)), key=lambda kind: -(first[kind].price_per_hour or 0.0) / rates[kind])
    slowest = sorted(range(len(first)), key=lambda kind: rates[kind])
    return list(dict.fromkeys([*_left(whole, dearest), *_left(whole, slowest)]))


def _left(whole: Sequence[int], order: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """What is left after each host less, kind by kind."""
    left = list(whole)
    for kind in order:
        for _ in range(whole[kind]):
            left[kind] -= 1
            if any(left):
                yield tuple(left)
