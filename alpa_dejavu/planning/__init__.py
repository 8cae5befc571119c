"""The flow of planning: a task is searched over shapes, sliced, simulated, ranked and annotated.

In: layers of a model, a cluster with its prices, and the choices that are left open (`PlanningTask`).
Out: a `PlanningResult`: the plan, the next best ones, and all that they were made from.
Every door (the stage option inside Alpa, the command line, replan, strategies, estimates) makes a task for `plan`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu._util.lazy import loaded_when_used

if TYPE_CHECKING:
    from alpa_dejavu.planning._active_profiling import Measured
    from alpa_dejavu.planning._estimate import estimate
    from alpa_dejavu.planning._given import GivenStage, GivenStages, given_stages, meant_stages
    from alpa_dejavu.planning._model import plan_model
    from alpa_dejavu.planning._searched import Searched
    from alpa_dejavu.planning.planner import plan
    from alpa_dejavu.planning.result import PlanningResult, RunnerUp
    from alpa_dejavu.planning.task import PlanningTask

__all__ = [
    "GivenStage",
    "GivenStages",
    "Measured",
    "PlanningResult",
    "PlanningTask",
    "RunnerUp",
    "Searched",
    "estimate",
    "given_stages",
    "meant_stages",
    "plan",
    "plan_model",
]

_HOME = {
    "estimate": "_estimate",
    "GivenStage": "_given",
    "GivenStages": "_given",
    "given_stages": "_given",
    "meant_stages": "_given",
    "Measured": "_active_profiling",
    "plan_model": "_model",
    "PlanningResult": "result",
    "RunnerUp": "result",
    "Searched": "_searched",
    "PlanningTask": "task",
    "plan": "planner",
}

__getattr__, __dir__ = loaded_when_used(__name__, _HOME)
