"""What was measured while a plan ran: from notes of single instructions to the times of stages and of the step."""

from alpa_dejavu.measurement._measured import Measured, measured
from alpa_dejavu.measurement._notes import Message, Note, StageNotes, StepNotes

__all__ = ["Measured", "Message", "Note", "StageNotes", "StepNotes", "measured"]
