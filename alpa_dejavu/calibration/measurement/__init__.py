"""Measurements of a plan while it runs: from notes of single instructions to the times of stages and of the step."""

from alpa_dejavu.calibration.measurement._measured import Measured, measured
from alpa_dejavu.calibration.measurement.notes import Message, Note, StageNotes, StepNotes

__all__ = ["Measured", "Message", "Note", "StageNotes", "StepNotes", "measured"]
