"""Learned communication: models fitted to measured collectives. It needs SciPy; the planner's defaults don't."""

from alpa_dejavu.costs.communication._collectives import Collectives
from alpa_dejavu.costs.communication._fitted import FittedCollectives
from alpa_dejavu.costs.communication._learned import LearnedCommunication
from alpa_dejavu.costs.communication._profile import FILLED_IN, Suspect, summary, suspects
from alpa_dejavu.costs.left_out_errors import Seconds

__all__ = [
    "FILLED_IN",
    "Collectives",
    "FittedCollectives",
    "LearnedCommunication",
    "Seconds",
    "Suspect",
    "summary",
    "suspects",
]
