"""The differences between two plans, and what each costs, on the mean of making them one after the other and back."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import final

from alpa_dejavu._util.near_names import name_ranges
from alpa_dejavu.plans.plan_changes import TRAINING, between, changes, size_changes
from alpa_dejavu.problem import NoPlanError, Plan, PricedBy
from alpa_dejavu.problem.run import ALPA_SCHEDULES


@final
@dataclasses.dataclass(frozen=True)
class Difference:
    """A difference between two plans, and by how many seconds it makes the second plan's step longer."""

    what: str  # the name of the choice that differs, such as "schedule"
    first: str  # `first`, `second`: the choice in the first and in the second plan, in words
    second: str
    # How many seconds longer a step takes with the second value, once all differences before it are made and once all
    # behind it, on the mean; None where it can't be told. Costs add up to the difference of the steps.
    cost_s: float | None = None


def differences(first: Plan, second: Plan, step_s: Callable[[Plan], float] | None = None) -> tuple[Difference, ...]:
    """Returns all differences of two plans: in what Alpa runs, and in the cost models and past runs of their seconds;
    each with what it costs in seconds of a step, by a function that predicts a plan's step (None: no costs).

    Costs are those of making the differences one after the other as they are listed, and of the reverse order, on the
    mean; where a plan in between can't be estimated (ValueError or NoPlanError), those of the first order that can, of
    some that are drawn. Exchanging the plans negates costs. Plans for different models, clusters or batches aren't
    estimated.
    """
    problem = [Difference(*row) for row in _of_problem(first, second)]
    changed = [Difference(*row) for row in changes(first, second)]
    if step_s is None or problem or not changed:
        return (*problem, *changed)
    names, pricing = [difference.what for difference in changed], step_s

    def seconds(numbers: frozenset[int]) -> float | None:
        try:
            return pricing(between(first, second, [names[n] for n in numbers]))
        except (NoPlanError, ValueError):
            if len(numbers) in (0, len(names)):
                raise
            return None

    costs = shares(len(changed), seconds)
    if costs is None:
        return tuple(changed)
    return tuple(dataclasses.replace(change, cost_s=cost_s) for change, cost_s in zip(changed, costs, strict=True))


def _of_problem(first: Plan, second: Plan) -> Iterator[tuple[str, str, str]]:
    for what in ("model", "cluster", "batch", "layer_option"):
        texts = str(getattr(first, what)), str(getattr(second, what))
        if what == "model" and (differing := size_changes(first, second)) is not None:
            yield from ((f"model: {name}", own, other) for name, own, other in differing if name not in TRAINING)
        elif texts[0] != texts[1]:
            yield (what.replace("_", " "), *texts)
    if first.hardware and second.hardware and first.hardware != second.hardware:
        yield "hosts of the cluster", _hosts(first), _hosts(second)
    # What a schedule brings with it is no other problem, nor is what no framework but Alpa asks.
    alike = (first.schedule in ALPA_SCHEDULES) == (second.schedule in ALPA_SCHEDULES)
    if alike and any(map(_is_for_alpa, (first, second))) and first.runs_on_alpa != second.runs_on_alpa:
        yield ("runs on Alpa", "yes", "no") if first.runs_on_alpa else ("runs on Alpa", "no", "yes")


def _is_for_alpa(plan: Plan) -> bool:
    by = plan.priced_by or PricedBy()
    return (by.runs_on or by.runtime.partition("+")[0]) == PricedBy.runtime


def _hosts(plan: Plan) -> str:
    assert plan.hardware is not None, "plans that don't know their cluster aren't asked"
    return f"{plan.hardware.text}: {name_ranges(host.name for host in plan.hardware.hosts)}"


DRAWN = 8
"""So many orders are drawn at most, each with its reverse, where some plans in between can't be estimated."""
SEED = 0


def shares(count: int, value: Callable[[frozenset[int]], float | None]) -> list[float] | None:
    """Returns what each of `count` changes adds, on the mean of making them one after the other and in the reverse
    order, so that undoing them adds the negative; None if it can't be told. `value` gives that of a set of changes
    made; None: it isn't known. Where neither order is known throughout, the first drawn one that is takes their place.

    `value` is called once for each set, first for none and for all of them.

    References:
        Mitchell, Cooper, Frank and Holmes, Sampling Permutations for Shapley Value Estimation, JMLR 2022 (antithetic).

    >>> shares(2, lambda made: float(len(made) ** 2))
    [2.0, 2.0]
    """
    cached = functools.cache(value)
    if cached(frozenset()) is None or cached(frozenset(range(count))) is None:
        return None
    chance = random.Random(SEED)
    for drawn in range(DRAWN + 1):
        order = chance.sample(range(count), count) if drawn else list(range(count))
        worth: list[list[float]] = [[] for _ in range(count)]
        for changes_made in (order, order[::-1]):
            values = _values(changes_made, cached) or []
            for change, (before, after) in zip(changes_made, itertools.pairwise(values), strict=False):
                worth[change].append(after - before)
        if count == 0 or worth[0]:
            return [math.fsum(added) / len(added) for added in worth]
    return None


def _values(order: Sequence[int], value: Callable[[frozenset[int]], float | None]) -> list[float] | None:
    """The value before each change and after the last; None where one can't be told."""
    values: list[float] = []
    for length in range(len(order) + 1):
        worth = value(frozenset(order[:length]))
        if worth is None:
            return None
        values.append(worth)
    return values
