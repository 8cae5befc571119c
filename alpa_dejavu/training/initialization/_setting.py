"""The setting of a run: all that it was asked for, already checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import final

from alpa_dejavu.training.initialization._align import Group
from alpa_dejavu.training.initialization._judge import Judge
from alpa_dejavu.training.initialization.rules import Rule
from alpa_dejavu.training.initialization.starts import Start


@final
@dataclasses.dataclass(frozen=True)
class Setting:
    """The checked options of one run of `parallel_initialize`.

    Attributes:
        num_candidates: how many begin.
        budget_steps: the steps of the candidate that is chosen, from its beginning. These and all other numbers of
            steps are of the largest of `batch_rows`.
        rungs: the steps at which candidates are judged.
        extra_steps: how many steps all the other candidates may take together.
        start, rule, judge: the objects that choose candidates' first weights, which of them go on, and their order.
        seed: the seed of all random numbers.
        batch_rows: candidates take so many rows of each batch, in turn; (): all.
        rates: candidates begin with these learning rates, in turn; (): they carry none.
        lanes: so many candidates are trained side by side at most.
        checkpoint_steps: a checkpoint is written every so many steps.
        groups: units that may be permuted for averaging; (): none are known.
        average: whether means of finalists are tried.
        keep_weights: whether curves keep candidates' first and last weights.
    """

    num_candidates: int
    budget_steps: int
    rungs: tuple[int, ...]
    extra_steps: float
    start: Start
    rule: Rule
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
