"""Learned communication: models fitted to measured collectives. It needs SciPy; the planner's defaults don't."""

from alpa_dejavu.communication._collectives import Collectives
from alpa_dejavu.communication._fitted import CollectiveSeconds, FittedCollectives
from alpa_dejavu.communication._learned import LearnedCommunication
from alpa_dejavu.communication._profile import Suspect, summary, suspects

__all__ = [
    "CollectiveSeconds",
    "Collectives",
    "FittedCollectives",
    "LearnedCommunication",
    "Suspect",
    "summary",
    "suspects",
]
