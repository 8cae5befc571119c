"""The rungs: the steps at which candidates are judged, and how many steps that may cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from alpa_dejavu.problem import checks

FEWEST_STEPS = 4
"""The fewest losses that a curve says anything by."""
RACE = 0.25
"""The fraction of the training in which candidates race, where compute isn't limited."""
EXTRA = 0.25
"""The steps that budget="small" allows besides the training itself, as a fraction of it."""
BUDGETS = ("full", "small")


def race_rungs(
    rungs: Sequence[int] | None, num_candidates: int, budget_steps: int, eta: int, budget: str
) -> tuple[int, ...]:
    """Returns the rungs (steps at which candidates are judged) of a run: those that were given, checked, else those
    that follow from the budget.

    Raises:
        ValueError: they can't be, or no such budget is known.
    """
    checks.one_of("parallel_initialize", "budget", budget, BUDGETS)
    if rungs is not None:
        return checked_rungs(rungs, num_candidates, budget_steps, budget)
    return rungs_of(num_candidates, budget_steps, eta, budget)


def rungs_of(num_candidates: int, budget_steps: int, eta: int, budget: str) -> tuple[int, ...]:
    """Returns the rungs, the steps at which candidates are judged: each is about eta times the one before; at the last,
    one candidate is left.

    Args:
        num_candidates: how many candidates begin.
        budget_steps: the steps of the whole training of the best candidate.
        eta: about one candidate in so many goes on from a rung.
        budget: "full": the race is a quarter of the training. "small": the steps of all but the best candidate are a
            quarter of the training at most.

    Raises:
        ValueError: the budget is too small for so many candidates.

    >>> rungs_of(8, 400, 2, "full")
    (25, 50, 100)
    >>> rungs_of(8, 400, 2, "small")
    (8, 16, 32)
    """
    if num_candidates == 1:
        return (budget_steps,)
    count = max(1, math.ceil(math.log(num_candidates) / math.log(eta) - 1e-9))
    if budget == "small":
        first = int(EXTRA * budget_steps / _extra_steps(num_candidates, [eta**n for n in range(count)], eta))
        first = min(first, budget_steps // eta ** (count - 1))
        if first < FEWEST_STEPS:
            raise ValueError(_too_small(num_candidates, budget_steps, eta, count))
    else:
        while count > 1 and RACE * budget_steps / eta ** (count - 1) < FEWEST_STEPS:
            count -= 1
        first = int(RACE * budget_steps / eta ** (count - 1))
        if first < FEWEST_STEPS:
            raise ValueError(
                f"budget_steps is {budget_steps}, but a race of candidates needs {math.ceil(FEWEST_STEPS / RACE)}"
                " at least; give more steps, or one candidate"
            )
    return tuple(first * eta**n for n in range(count))


def checked_rungs(rungs: Sequence[int], num_candidates: int, budget_steps: int, budget: str) -> tuple[int, ...]:
    """Returns the rungs (steps at which candidates are judged) that the user gave, after checking them.

    Raises:
        ValueError: the rungs don't ascend, or end after the training, or the first is more than the budget allows.
    """
    given = tuple(rungs)
    ascend = all(a < b for a, b in itertools.pairwise(given))
    if not given or given[0] < 1 or not ascend or given[-1] > budget_steps:
        raise ValueError(f"rungs is {given}, but must be ascending steps from 1 to budget_steps, {budget_steps}")
    extra = extra_allowed(budget_steps, budget)
    if (num_candidates - 1) * given[0] > extra:
        raise ValueError(
            f'budget="small" lets candidates take {extra:g} extra steps, but {num_candidates} of them take '
            f"{(num_candidates - 1) * given[0]} to the first rung, {given[0]}; give an earlier rung"
        )
    return given


def extra_allowed(budget_steps: int, budget: str) -> float:
    """Returns how many training steps a budget allows all candidates together besides those of the one that is trained
    on.
    """
    return EXTRA * budget_steps if budget == "small" else math.inf


def _extra_steps(num_candidates: int, rungs: Sequence[int], eta: int) -> int:
    """Returns the steps that all but the best candidate take under successive halving."""
    total, before, alive = 0, 0, num_candidates
    for rung in rungs:
        total += (alive - 1) * (rung - before)
        before, alive = rung, -(-alive // eta)
    return total


def _too_small(num_candidates: int, budget_steps: int, eta: int, count: int) -> str:
    needed = math.ceil(FEWEST_STEPS * _extra_steps(num_candidates, [eta**n for n in range(count)], eta) / EXTRA)
    return (
        f'budget="small" lets candidates take {EXTRA * budget_steps:g} steps besides the {budget_steps} of the '
        f"training, too few to judge {num_candidates}; give {needed} budget_steps, fewer candidates, or budget=\"full\""
    )
