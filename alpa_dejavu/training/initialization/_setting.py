"""The setting of a run: all that it was asked for, already checked."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import final

from alpa_dejavu.problem import checks
from alpa_dejavu.training.initialization._judge import Judge
from alpa_dejavu.training.initialization._layout import Group
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
    """Returns the rungs (steps at which candidates are judged) of a run: those that were given, checked, else those
    that follow from the budget.

    Raises:
        ValueError: they don't ascend, end after the training, or cost more than the budget allows; or no such budget
            is known.
    """
    checks.one_of("parallel_initialize", "budget", budget, BUDGETS)
    if rungs is None:
        return rungs_of(num_candidates, budget_steps, eta, budget)
    given = tuple(rungs)
    ascend = all(a < b for a, b in itertools.pairwise(given))
    if not given or given[0] < 1 or not ascend or given[-1] > budget_steps:
        raise ValueError(f"rungs is {given}, but must be ascending steps from 1 to budget_steps, {budget_steps}")
    extra, first = extra_allowed(budget_steps, budget), (num_candidates - 1) * given[0]
    if first > extra:
        raise ValueError(
            f'budget="small" lets candidates take {extra:g} extra steps, but {num_candidates} of them take {first} to '
            f"the first rung, {given[0]}; give an earlier rung"
        )
    return given


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
        extra = _extra_steps(num_candidates, [eta**n for n in range(count)], eta)
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


def _extra_steps(num_candidates: int, rungs: Sequence[int], eta: int) -> int:
    """Returns the steps that all but the best candidate take under successive halving."""
    total, before, alive = 0, 0, num_candidates
    for rung in rungs:
        total += (alive - 1) * (rung - before)
        before, alive = rung, -(-alive // eta)
    return total


def check_numbers(
    num_candidates: int, budget_steps: int, lanes: int, checkpoint_steps: int, seed: int, workers: int | None,
    batch_rows: Sequence[int], rates: Sequence[float],
) -> None:  # fmt: skip
    """Raises ValueError unless a run's numbers are whole ones of at least 1, its seed of at least 0, and its learning
    rates above 0.
    """
    given = {"num_candidates": num_candidates, "budget_steps": budget_steps, "lanes": lanes,
             "checkpoint_steps": checkpoint_steps, **({} if workers is None else {"workers": workers})}  # fmt: skip
    given.update({f"batch_rows[{n}]": rows for n, rows in enumerate(batch_rows)})
    for name, value in given.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"parallel_initialize: {name} is {value!r}, but must be a whole number of at least 1")
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"parallel_initialize: seed is {seed!r}, but must be a whole number of at least 0")
    for place, rate in enumerate(rates):
        checks.positive("parallel_initialize", f"rates[{place}]", rate)


def check_waits(rule: RaceRule, start: Start) -> None:
    """Raises ValueError if a start learns from earlier candidates and the rule doesn't wait for them."""
    if not rule.waits and len(start.waves) > 1:
        raise ValueError(
            f"{type(start).__name__} learns from earlier candidates, and {type(rule).__name__} "
            "doesn't wait for them; take a rule that waits, such as 'halving'"
        )


@final
@dataclasses.dataclass(frozen=True)
class RaceSetting:
    """The checked options of one run of `parallel_initialize`, as that takes them, and what follows from them.

    Attributes:
        rungs: the steps at which candidates are judged, of the largest of `batch_rows` as all other numbers of steps.
        extra_steps: how many steps all but the chosen candidate may take together.
        lanes: so many candidates fit side by side.
        groups: units that may be permuted for averaging; (): none are known.
    """

    num_candidates: int
    budget_steps: int
    rungs: tuple[int, ...]
    extra_steps: float
    start: Start
    rule: RaceRule
    judge: Judge
    seed: int
    batch_rows: tuple[int, ...]
    rates: tuple[float, ...]
    lanes: int
    checkpoint_steps: int
    groups: tuple[Group, ...]
    average: bool
    keep_weights: bool

    @property
    def unit(self) -> int:
        """Returns the cost of the dearest step, in rows where candidates' batches have rows of their own, else 1: rungs
        and budgets are in such steps, so candidates are judged when they have spent the same.
        """
        return max(self.batch_rows, default=1)

    @property
    def limit(self) -> int:
        """Returns the cost of the whole training of one candidate."""
        return self.budget_steps * self.unit

    def carried(self, number: int) -> tuple[Start, float | None, int | None]:
        """Returns a candidate's start, its learning rate and the rows of its batches, by its number: all of them take
        turns, so that few candidates have many combinations.
        """
        members = self.start.members
        places = turns(number, (len(members), len(self.rates), len(self.batch_rows)))
        rate = self.rates[places[1]] if self.rates else None
        return members[places[0]], rate, self.batch_rows[places[2]] if self.batch_rows else None


def turns(number: int, counts: Sequence[int]) -> tuple[int, ...]:
    """Returns a place below each count: places take turns, and where they would all be at their beginnings again, one
    of them has moved on by one.

    >>> [turns(number, (2, 2)) for number in range(4)]
    [(0, 0), (1, 1), (0, 1), (1, 0)]
    """
    period, places = 1, []
    for count in counts:
        whole = math.lcm(period, max(count, 1))
        places.append((number + (number // whole if period > 1 else 0)) % max(count, 1))
        period = whole
    return tuple(places)
