"""Measured steps of executed plans, kept in one file, and what the next plan learns from them.

Correction.read("history.sqlite").of(Origin.of(model, cluster, "analytic", "alpha-beta"), plan).factor
"""

from alpa_dejavu.calibration.history._correction import Correction, corrected, corrected_timeline
from alpa_dejavu.calibration.history._store import HISTORY_ENV, Store, default_path, history_path
from alpa_dejavu.calibration.history.past_run import Origin, PastRun, StageSeconds

__all__ = [
    "HISTORY_ENV", "Correction", "Origin", "PastRun", "StageSeconds", "Store", "corrected", "corrected_timeline",
    "default_path", "history_path",
]  # fmt: skip
