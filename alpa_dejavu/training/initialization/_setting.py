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
    """The setting of one run.

    Attributes:
        num_candidates: how many begin.
        budget_steps: the steps of the one that is chosen, from its beginning.
        rungs: the steps at which candidates are judged.
        extra_steps: how many steps all the others may take.
        start, rule, judge: who says where, whom and by what.
        seed: of all that is random.
        batch_rows: candidates take so many rows of each batch, in turn; (): all.
        lanes: so many are trained side by side at most.
        checkpoint_steps: a state isn't older than that.
        groups: units that may be permuted for averaging; (): none are known.
        average: whether means of finalists are tried.
        keep_weights: whether curves keep where candidates began and ended.
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
