"""The only room that knows Alpa: the options, hooks into Alpa, and stand-ins for its functions with their signatures.

In: what Alpa hands to a stage option, or a plan to run. Out: stages, submeshes and sharding options as Alpa takes them;
measured steps; a trained state. Names are loaded when they are first used, as options and hooks know each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu._util.lazy import loaded_when_used

if TYPE_CHECKING:
    from alpa_dejavu.alpa._hooks import HookError, install, installed, uninstall
    from alpa_dejavu.alpa._profile import PlanRun, connection, profile
    from alpa_dejavu.alpa._recorder import record
    from alpa_dejavu.alpa._search import get_compute_cost, inference_dp, training_dp

__all__ = [
    "HookError", "PlanRun", "connection", "get_compute_cost", "inference_dp", "install", "installed", "profile",
    "record", "training_dp", "uninstall",
]  # fmt: skip

_HOME = {
    "get_compute_cost": "_search",
    **dict.fromkeys(("HookError", "install", "installed", "uninstall"), "_hooks"),
    "PlanRun": "_profile",
    **dict.fromkeys(("connection", "profile"), "_profile"),
    "record": "_recorder",
    **dict.fromkeys(("inference_dp", "training_dp"), "_search"),
}

__getattr__, __dir__ = loaded_when_used(__name__, _HOME)
