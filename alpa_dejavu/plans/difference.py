"""The differences between two plans, and what each costs, on the mean over the orders in which they can be made."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import final

from alpa_dejavu._util.near_names import name_ranges
from alpa_dejavu.plans.plan_changes import between, changes, stages_text
from alpa_dejavu.problem import NoPlanError, Plan
from alpa_dejavu.problem.run import ALPA_SCHEDULES

__all__ = ["Difference", "differences", "stages_text"]


@final
@dataclasses.dataclass(frozen=True)
class Difference:
    """A difference between two plans, and by how many seconds it makes the second plan's step longer."""

    what: str  # the name of the choice that differs, such as "schedule"
    first: str  # `first`, `second`: the choice in the first and in the second plan, in words
    second: str
    # How many seconds longer a step takes with the second value, on the mean over the orders in which the differences
    # can be made; None where it can't be told. Costs add up to the difference of the steps.
    cost_s: float | None = None


def differences(first: Plan, second: Plan, step_s: Callable[[Plan], float] | None = None) -> tuple[Difference, ...]:
    """Returns all differences of two plans: in what Alpa runs, and in the cost models and past runs of their seconds;
    each with what it costs in seconds of a step, by a function that predicts a plan's step (None: no costs).

    Costs are Shapley values: of up to six differences over all orders, of more over 16 orders that are drawn with a
    seed of 0. Orders in which a plan in between can't be estimated (ValueError or NoPlanError) are left out. Exchanging
    the plans negates costs. Plans for different models, clusters or batches aren't estimated.
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

    costs = shapley(len(changed), seconds)
    if costs is None:
        return tuple(changed)
    return tuple(dataclasses.replace(change, cost_s=cost_s) for change, cost_s in zip(changed, costs, strict=True))


def _of_problem(first: Plan, second: Plan) -> Iterator[tuple[str, str, str]]:
    for what in ("model", "cluster", "batch", "layer_option"):
        texts = str(getattr(first, what)), str(getattr(second, what))
        sizes = [_sizes(text) for text in texts] if what == "model" else []
        if texts[0] != texts[1] and sizes and all(sizes) and sizes[0]["kind"] == sizes[1]["kind"]:
            for name in sorted(sizes[0].keys() | sizes[1].keys()):
                values = sizes[0].get(name, "as usual"), sizes[1].get(name, "as usual")
                if values[0] != values[1]:
                    yield (f"model: {name}", *values)
        elif texts[0] != texts[1]:
            yield (what.replace("_", " "), *texts)
    if first.hardware and second.hardware and first.hardware != second.hardware:
        yield "hosts of the cluster", _hosts(first), _hosts(second)
    # What a schedule brings with it is no other problem.
    alike = (first.schedule in ALPA_SCHEDULES) == (second.schedule in ALPA_SCHEDULES)
    if alike and first.runs_on_alpa != second.runs_on_alpa:
        yield ("runs on Alpa", "yes", "no") if first.runs_on_alpa else ("runs on Alpa", "no", "yes")


def _sizes(model: str) -> dict[str, str]:
    """The sizes in the text of a model of a kind, such as a transformer's, by their names; empty for other models."""
    kind, colon, sizes = model.partition(":")
    if not colon or "=" not in sizes:
        return {}
    return {"kind": kind} | {name: value for name, _, value in (part.partition("=") for part in sizes.split(","))}


def _hosts(plan: Plan) -> str:
    assert plan.hardware is not None, "plans that don't know their cluster aren't asked"
    return f"{plan.hardware.text}: {name_ranges(host.name for host in plan.hardware.hosts)}"


MOST_EXACT = 6
"""Up to so many changes are taken in all orders, more of them in drawn ones."""
DRAWN = 16
"""So many orders are drawn, half of them the others reversed."""
SEED = 0


def shapley(count: int, value: Callable[[frozenset[int]], float | None]) -> list[float] | None:
    """Returns the Shapley value of each of `count` changes, the mean of what making it adds over the orders in which
    all can be made; None if no order is left. `value` gives that of a set of changes made; None: it isn't known.

    Up to 6 changes are made in all orders, more in 16 drawn ones, each with its reverse, so that undoing the changes is
    worth the negative, to the last bit. `value` is called once for each set, first for none and for all of them.

    References:
        Shapley, A value for n-person games, 1953.
        Mitchell, Cooper, Frank and Holmes, Sampling Permutations for Shapley Value Estimation, JMLR 2022 (antithetic).

    >>> shapley(2, lambda made: float(len(made) ** 2))
    [2.0, 2.0]
    """
    cached = functools.cache(value)
    if cached(frozenset()) is None or cached(frozenset(range(count))) is None:
        return None
    worth: list[list[float]] = [[] for _ in range(count)]
    for order in _orders(count):
        values = _values(order, cached)
        if values is not None:
            for n, change in enumerate(order):
                worth[change].append(values[n + 1] - values[n])
    return [math.fsum(added) / len(added) for added in worth] if worth[0] else None


def _orders(count: int) -> Iterator[Sequence[int]]:
    if count <= MOST_EXACT:
        yield from itertools.permutations(range(count))
        return
    chance = random.Random(SEED)
    for _ in range(DRAWN // 2):
        order = chance.sample(range(count), count)
        yield order
        yield order[::-1]


def _values(order: Sequence[int], value: Callable[[frozenset[int]], float | None]) -> list[float] | None:
    """The value before each change and after the last; None where one can't be told."""
    values: list[float] = []
    for length in range(len(order) + 1):
        worth = value(frozenset(order[:length]))
        if worth is None:
            return None
        values.append(worth)
    return values
