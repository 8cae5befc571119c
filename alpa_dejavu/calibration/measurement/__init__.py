"""Measurements of a plan while it runs.

In: the notes that workers take of single instructions.
Out: the times of each stage and of the whole step, beside those that were predicted.
"""

from alpa_dejavu.calibration.measurement._measured import MeasuredPlan, measured
from alpa_dejavu.calibration.measurement.notes import Note, StageMessage, StageNotes, StepNotes

__all__ = ["MeasuredPlan", "Note", "StageMessage", "StageNotes", "StepNotes", "measured"]
