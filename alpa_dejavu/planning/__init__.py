"""The flow of planning: a task is searched over shapes, sliced, simulated, ranked and annotated.

In: a `PlanningTask`: layers of a model, a cluster with its prices, and the choices that are left open. Out: a
`PlanningResult`: the plan, the next best ones, and all that they were made from. Every door makes a task for `plan`. No
plan enters one of its rooms twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu._util.lazy import loaded_when_used

if TYPE_CHECKING:
    from alpa_dejavu.planning.by_name import plan_model
    from alpa_dejavu.planning.given.plan_estimate import estimate
    from alpa_dejavu.planning.planner import plan
    from alpa_dejavu.planning.result import PlanningResult, RunnerUp
    from alpa_dejavu.planning.search._decisive import Decisive
    from alpa_dejavu.planning.search._searched import Searched
    from alpa_dejavu.planning.search.given_stages import GivenStage, GivenStages, given_stages, meant_stages
    from alpa_dejavu.planning.task import PlanningTask

__all__ = [
    "Decisive", "GivenStage", "GivenStages", "PlanningResult", "PlanningTask", "RunnerUp", "Searched", "estimate",
    "given_stages", "meant_stages", "plan", "plan_model",
]  # fmt: skip

_HOME = {
    "estimate": "given.plan_estimate",
    "GivenStage": "search.given_stages",
    "GivenStages": "search.given_stages",
    "given_stages": "search.given_stages",
    "meant_stages": "search.given_stages",
    "Decisive": "search._decisive",
    "plan_model": "by_name",
    "PlanningResult": "result",
    "RunnerUp": "result",
    "Searched": "search._searched",
    "PlanningTask": "task",
    "plan": "planner",
}

__getattr__, __dir__ = loaded_when_used(__name__, _HOME)
