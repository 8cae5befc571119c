"""The task of another strategy than this package's search, for the step that Alpa compiles."""

from __future__ import annotations

import dataclasses

from alpa_dejavu.alpa.option import DejavuStageOption
from alpa_dejavu.planning import PlanningTask
from alpa_dejavu.planning.strategies import AlpaDefault, ByStrategy, strategy


def by_strategy(option: DejavuStageOption, task: PlanningTask) -> PlanningTask:
    """The task with the option's strategy in the place of the search.

    Raises:
        ValueError: the schedule isn't 1F1B.
    """
    # Which layers are computed again is the layer option's to say.
    chosen = AlpaDefault(("none",), (0,)) if option.strategy == "alpa" else strategy(option.strategy)
    if task.schedule != "1f1b":
        raise ValueError(
            f"pipeline_schedule is {task.schedule!r}, but {chosen.name} plans for '1f1b'; give that, or "
            "strategy='dejavu'"
        )
    return dataclasses.replace(task, chooser=ByStrategy(chosen))
