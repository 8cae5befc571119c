"""The setting of a run: all that it was asked for, already checked."""

from __future__ import annotations

import dataclasses
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
        budget_steps: the steps of the candidate that is chosen, from its beginning.
        rungs: the steps at which candidates are judged.
        extra_steps: how many steps all the other candidates may take together.
        start, rule, judge: the objects that choose candidates' first weights, which of them go on, and their order.
        seed: the seed of all random numbers.
        batch_rows: candidates take so many rows of each batch, in turn; (): all.
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
    lanes: int
    checkpoint_steps: int
    groups: tuple[Group, ...]
    average: bool
    keep_weights: bool
