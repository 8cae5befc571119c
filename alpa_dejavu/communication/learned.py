"""Learned communication: models fitted to measured collectives. It needs SciPy; the planner's defaults don't."""

from alpa_dejavu._left_out import Seconds
from alpa_dejavu.communication._collectives import Collectives
from alpa_dejavu.communication._fitted import FittedCollectives
from alpa_dejavu.communication._learned import LearnedCommunication
from alpa_dejavu.communication._profile import FILLED_IN, Suspect, summary, suspects

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
