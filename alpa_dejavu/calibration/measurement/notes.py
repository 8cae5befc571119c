"""Notes that workers take of a step: which instruction ran from when to when. Seconds are those of one clock."""

from __future__ import annotations

import dataclasses
from typing import final

__all__ = ["OTHER", "RECEIVE", "RUN", "SEND", "Message", "Note", "StageNotes", "StepNotes"]

RUN, SEND, RECEIVE, OTHER = "run", "send", "receive", "other"


@final
@dataclasses.dataclass(frozen=True)
class Message:
    """A message between stages that a worker's instruction has sent or received, and when.

    Attributes:
        key: the message's key, the same where it is sent and where it is received.
        asked_s, there_s: when the receiver asked for the message, and when it had it: the later of asking and of its
            arrival where it didn't wait. In the sender's note both are the end of sending it.
    """

    key: str
    asked_s: float
    there_s: float


@final
@dataclasses.dataclass(frozen=True)
class Note:
    """A note of one instruction that a stage's worker ran: of which kind it was, and when it began and ended.

    Attributes:
        what: "run" (a computation, until its results were there), "send", "receive", or "other".
        task: for "run", the number of the computation among those of all S stages: forward passes are 0..S-1, backward
            passes S..2S-1 from the last stage to the first, updates follow; None for what allocates or gathers.
        start_s, end_s: when the instruction began and ended.
        waited_s: the seconds of it in which the worker waited for other stages.
        messages: the messages that it sent or received.
    """

    what: str
    task: int | None
    start_s: float
    end_s: float
    waited_s: float = 0.0
    messages: tuple[Message, ...] = ()


@final
@dataclasses.dataclass(frozen=True)
class StageNotes:
    """The notes that a stage's first worker took of one step: its start and end, and each instruction.

    Attributes:
        start_s, end_s: when the stage's part of the step began, and when its results were there.
        notes: the notes of the instructions in their order; empty if only start and end were noted.
    """

    start_s: float
    end_s: float
    notes: tuple[Note, ...] = ()

    @property
    def computing_s(self) -> float:
        """Returns the seconds of all computations of the stage in the step; waiting for other stages doesn't count."""
        return sum(note.end_s - note.start_s - note.waited_s for note in self.notes if note.what == RUN)


@final
@dataclasses.dataclass(frozen=True)
class StepNotes:
    """The notes of one step of a pipeline: its start and end, and the notes of each stage's worker.

    Attributes:
        start_s, end_s: when the program called the step, and when it saw that all stages were done.
        stages: the notes of each stage, in the order of the layers.
    """

    start_s: float
    end_s: float
    stages: tuple[StageNotes, ...]

    @property
    def step_s(self) -> float:
        """Returns the seconds of the whole step, as the program that asked for it saw it."""
        return self.end_s - self.start_s

    @property
    def answer_s(self) -> float:
        """Returns the seconds from the end of the last stage until the program knows that the step is done."""
        return self.end_s - max(stage.end_s for stage in self.stages)
