"""Measured steps of executed plans, kept in one file, and what the next plan learns from them.

Correction.read("history.sqlite").of(Origin.of(model, cluster, "analytic", "alpha-beta"), plan).factor
"""

from alpa_dejavu._history_file import default_path, history_path
from alpa_dejavu.history._apply import corrected, corrected_timeline
from alpa_dejavu.history._correction import Correction
from alpa_dejavu.history._origin import Origin
from alpa_dejavu.history._record import past_run, record
from alpa_dejavu.history._run import PastRun, StageSeconds
from alpa_dejavu.history._store import Store

__all__ = [
    "Correction",
    "Origin",
    "PastRun",
    "StageSeconds",
    "Store",
    "corrected",
    "corrected_timeline",
    "default_path",
    "history_path",
    "past_run",
    "record",
]
