"""Plans Alpa's pipeline stages in moments instead of minutes, without compiling or profiling any.

`import alpa_dejavu` imports neither jax nor Alpa; what needs them is loaded when it is first used.

>>> import alpa_dejavu
>>> cost, stages = alpa_dejavu.training_dp(1, 1, 4, [(1, 1)], 1, [[[[2.0]]]], [[[[0]]]])
>>> cost, stages
(8.0, [((0, 1), 0, 0)])
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if sys.argv[:1] == ["-m"] and __name__ in sys.orig_argv and not getattr(sys.flags, "safe_path", False):
    # `python -m alpa_dejavu` puts the current folder first: a random.py there would be run in place of Python's.
    sys.path.append(sys.path.pop(0))

from alpa_dejavu._util.lazy import loaded_when_used

if TYPE_CHECKING:
    from alpa_dejavu.alpa import get_compute_cost, inference_dp, install, installed, training_dp, uninstall
    from alpa_dejavu.alpa.layer_option import DejavuLayerOption
    from alpa_dejavu.alpa.option import DejavuStageOption
    from alpa_dejavu.planning import PlanningResult, PlanningTask, plan, plan_model
    from alpa_dejavu.plans.plan_file import plan_of, read_plan
    from alpa_dejavu.plans.table import plan_table
    from alpa_dejavu.problem import NoPlanError

__all__ = [
    "DejavuLayerOption",
    "DejavuStageOption",
    "NoPlanError",
    "PlanningResult",
    "PlanningTask",
    "get_compute_cost",
    "inference_dp",
    "install",
    "installed",
    "plan",
    "plan_model",
    "plan_of",
    "plan_table",
    "read_plan",
    "training_dp",
    "uninstall",
]

_HOME = {
    "DejavuLayerOption": "alpa.layer_option",
    "DejavuStageOption": "alpa.option",
    "NoPlanError": "problem",
    **dict.fromkeys(("PlanningResult", "PlanningTask", "plan", "plan_model"), "planning"),
    "plan_of": "plans.plan_file",
    "plan_table": "plans.table",
    "read_plan": "plans.plan_file",
    **dict.fromkeys(("get_compute_cost", "inference_dp", "install", "installed", "training_dp", "uninstall"), "alpa"),
}

__getattr__, __dir__ = loaded_when_used(__name__, _HOME)
