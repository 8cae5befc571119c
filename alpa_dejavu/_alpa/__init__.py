"""The only room that knows Alpa: hooks into it, and stand-ins for its functions with their signatures."""

from alpa_dejavu._alpa._costs import get_compute_cost
from alpa_dejavu._alpa._hooks import HookError, install, installed, uninstall
from alpa_dejavu._alpa._search import inference_dp, training_dp

__all__ = ["HookError", "get_compute_cost", "inference_dp", "install", "installed", "training_dp", "uninstall"]
