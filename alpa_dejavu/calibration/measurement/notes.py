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
        key: the same where it is sent and where it is taken.
        asked_s, there_s: when the receiver asked for it, and when it had it: the later of asking and of its arrival
            where it didn't wait. Of a message that is sent, both are the end of sending it.
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
        task: of "run", the number of the stage's task among all: forwards are 0..S-1, backwards S..2S-1 from the last
            stage to the first, updates follow; None for what allocates or gathers.
        start_s, end_s: when.
        waited_s: the part of it that waited for other stages.
        messages: that were sent or taken.
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
        start_s, end_s: of the whole, until its results were there.
        notes: in their order; empty where only the whole was noted.
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
    """The notes of one step of a pipeline: its start and end, and those of each stage.

    Attributes:
        start_s, end_s: as the program that asked for it saw it: from its call until all stages were done.
        stages: in the order of the layers.
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
