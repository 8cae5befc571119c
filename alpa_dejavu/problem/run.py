"""How a model is going to be run: the number of micro-batches, and the schedule by its name."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import TypeVar, final

from alpa_dejavu.problem import checks
from alpa_dejavu.problem.limits import MOST_MICRO_BATCHES, at_most

ALPA_SCHEDULES = ("1f1b", "1f1b_overlap_friendly", "gpipe", "inference")
"""Those that Alpa's runtime has."""
INTERLEAVED = "interleaved_([2-9]|[1-9][0-9]{1,2})"
"""The names, as a regular expression, of interleaved 1F1B with other numbers of chunks than two."""
_Stage = TypeVar("_Stage")


@final
@dataclasses.dataclass(frozen=True)
class ScheduleForm:
    """The form of a pipeline schedule: how it lays stages out on submeshes, and roughly what it keeps and wastes.

    Attributes:
        chunks: the stages of each submesh, v.
        folded: whether the stages go down the submeshes and back up, like a V; else they go around.
        first, per_submesh: a submesh with n behind it keeps first + per_submesh * n micro-batches, rounded
            down; infinite: all of the step. They are exact for the first submesh.
        bubble: the share of 1F1B's bubble that is left if forward, backward by inputs and by weights take equally long;
            small, but above 0.
        splits: whether backward passes are split into a part by inputs and one by weights.
    """

    chunks: int = 1
    folded: bool = False
    first: float = 1.0
    per_submesh: float = 1.0
    bubble: float = 1.0
    splits: bool = False

    def submesh_of(self, num_stages: int) -> tuple[int, ...]:
        """Returns the index of the submesh of each of a pipeline's stages.

        >>> ScheduleForm(2).submesh_of(4), ScheduleForm(2, folded=True).submesh_of(4)
        ((0, 1, 0, 1), (0, 1, 1, 0))
        """
        submeshes = num_stages // self.chunks
        return tuple(
            submeshes - 1 - n % submeshes if self.folded and n // submeshes % 2 else n % submeshes
            for n in range(num_stages)
        )


def _interleaved(chunks: int) -> ScheduleForm:
    return ScheduleForm(chunks, per_submesh=1 + 1 / chunks, bubble=1 / chunks)


_FORMS = {
    "1f1b": ScheduleForm(),
    "1f1b_overlap_friendly": ScheduleForm(per_submesh=2.0),
    "gpipe": ScheduleForm(first=math.inf),
    "inference": ScheduleForm(first=0.0, per_submesh=0.0),
    "interleaved": _interleaved(2),
    "zb_h1": ScheduleForm(bubble=1 / 3, splits=True),
    "zb_v": ScheduleForm(2, folded=True, bubble=1 / 20, splits=True),
    "v_half": ScheduleForm(2, folded=True, first=3 / 2, per_submesh=1 / 2, bubble=1 / 2, splits=True),
    "v_min": ScheduleForm(2, folded=True, first=5 / 3, per_submesh=1 / 3, bubble=2 / 3, splits=True),
    "dualpipe_v": ScheduleForm(2, folded=True, bubble=1 / 6, splits=True),
    "pipedream": ScheduleForm(),
}
SCHEDULES = tuple(_FORMS)
"""The names of schedules; "interleaved_3" and so on are interleaved with more chunks than two."""


def schedule_form(name: str) -> ScheduleForm:
    """Returns the form of the schedule of a name; ValueError if there is none.

    >>> schedule_form("interleaved_4").chunks
    4
    """
    if name in _FORMS:
        return _FORMS[name]
    chunked = re.fullmatch(INTERLEAVED, name)
    if chunked is None:
        checks.one_of("run", "schedule", name, SCHEDULES)
    assert chunked is not None, "other names are no schedules"
    return _interleaved(int(chunked[1]))


@final
@dataclasses.dataclass(frozen=True)
class Run:
    """A training or inference step to plan for: how many micro-batches its batch is cut into, B, and its pipeline
    schedule, one of `SCHEDULES` or "interleaved_" with a number of chunks.
    """

    num_micro_batches: int
    schedule: str = "1f1b"

    def __post_init__(self) -> None:
        checks.positive("run", "num_micro_batches", self.num_micro_batches)
        at_most("num_micro_batches", self.num_micro_batches, MOST_MICRO_BATCHES, "take larger micro-batches")
        schedule_form(self.schedule)

    @property
    def form(self) -> ScheduleForm:
        """Returns the form of the run's schedule: how many stages each submesh has, and which."""
        return schedule_form(self.schedule)

    def in_flight(self, successors: int) -> int:
        """Returns how many micro-batches' activations a submesh keeps at a time when `successors` submeshes follow it;
        at least as many in the schedules that Alpa hasn't, where that depends on those before it, too.

        >>> [Run(8, schedule).in_flight(2) for schedule in ALPA_SCHEDULES]
        [3, 5, 8, 0]

        References:
            Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021 (1F1B).
        """
        kept = self.form.first + self.form.per_submesh * successors
        return min(self.num_micro_batches, math.floor(kept + 1e-9)) if math.isfinite(kept) else self.num_micro_batches

    def on_submeshes(self, stages: Sequence[_Stage]) -> tuple[_Stage, ...]:
        """Returns for each submesh of the pipeline the first of the given stages that is on it."""
        return tuple(stages[: len(stages) // self.form.chunks])
