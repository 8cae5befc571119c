"""The setting of a run: all that it was asked for, already checked."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import final

from alpa_dejavu.problem import checks
from alpa_dejavu.training.initialization._judge import Judge
from alpa_dejavu.training.initialization.rules import RaceRule
from alpa_dejavu.training.initialization.starts import Start

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
    """Returns the rungs (steps at which candidates are judged) of a run: the wanted ones, checked, else those that
    follow from the budget.
    """
    checks.one_of("parallel_initialize", "budget", budget, BUDGETS)
    if rungs is None:
        return rungs_of(num_candidates, budget_steps, eta, budget)
    steps = tuple(rungs)
    ascend = all(a < b for a, b in itertools.pairwise(steps))
    if not steps or steps[0] < 1 or not ascend or steps[-1] > budget_steps:
        raise ValueError(f"rungs is {steps}, but must be ascending steps from 1 to budget_steps, {budget_steps}")
    extra, first = extra_allowed(budget_steps, budget), (num_candidates - 1) * steps[0]
    if first > extra:
        raise ValueError(
            f'budget="small" lets candidates take {extra:g} extra steps, but {num_candidates} of them take {first} to '
            f"the first rung, {steps[0]}; give an earlier rung"
        )
    return steps


def rungs_of(num_candidates: int, budget_steps: int, eta: int, budget: str) -> tuple[int, ...]:
    """Returns the rungs, the steps at which candidates are judged: each is about eta times the one before; at the
    last, one candidate is left. Budgets are as `parallel_initialize` has them.

    >>> rungs_of(8, 400, 2, "full")
    (25, 50, 100)
    >>> rungs_of(8, 400, 2, "small")
    (8, 16, 32)
    """
    if num_candidates == 1:
        return (budget_steps,)
    count = max(1, math.ceil(math.log(num_candidates) / math.log(eta) - 1e-9))
    if budget == "small":
        # What all but the best candidate take, where the first rung is one step.
        extra, before, alive = 0, 0, num_candidates
        for rung in (eta**n for n in range(count)):
            extra += (alive - 1) * (rung - before)
            before, alive = rung, -(-alive // eta)
        first = min(int(EXTRA * budget_steps / extra), budget_steps // eta ** (count - 1))
        if first < FEWEST_STEPS:
            raise ValueError(
                f'budget="small" lets candidates take {EXTRA * budget_steps:g} steps besides the {budget_steps} of the '
                f"training, too few to judge {num_candidates}; give {math.ceil(FEWEST_STEPS * extra / EXTRA)} "
                'budget_steps, fewer candidates, or budget="full"'
            )
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


def extra_allowed(budget_steps: int, budget: str) -> float:
    """Returns how many training steps a budget allows all candidates together besides those of the one that is trained
    on.
    """
    return EXTRA * budget_steps if budget == "small" else math.inf


@final
@dataclasses.dataclass(frozen=True)
class RaceSetting:
    """The checked options of one run of `parallel_initialize`, as that takes them, and what follows from them: all but
    the chosen candidate may take `extra_steps` together, and so many lanes fit side by side.
    """

    num_candidates: int
    budget_steps: int
    rungs: tuple[int, ...]
    extra_steps: float
    start: Start
    rule: RaceRule
    judge: Judge
    seed: int
    lanes: int
    checkpoint_steps: int
    keep_weights: bool
