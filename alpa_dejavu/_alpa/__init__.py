"""The only room that knows Alpa: hooks into it, and stand-ins for its functions with their signatures."""

from alpa_dejavu._alpa._costs import get_compute_cost
from alpa_dejavu._alpa._hooks import HookError, install, installed, uninstall
from alpa_dejavu._alpa._plan_run import PlanRun
from alpa_dejavu._alpa._profile import connection, profile
from alpa_dejavu._alpa._search import inference_dp, training_dp

__all__ = [
    "HookError", "PlanRun", "connection", "get_compute_cost", "inference_dp", "install", "installed", "profile",
    "training_dp", "uninstall",
]  # fmt: skip
