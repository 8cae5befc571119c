"""Notes that workers take of a step: which instruction ran from when to when. Seconds are those of one clock."""

from __future__ import annotations

import dataclasses
from typing import final

__all__ = ["OTHER", "RECEIVE", "RUN", "SEND", "Message", "Note", "StageNotes", "StepNotes"]

RUN, SEND, RECEIVE, OTHER = "run", "send", "receive", "other"


@final
@dataclasses.dataclass(frozen=True)
class Message:
    """A message that an instruction has sent or taken.

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
    """One instruction of a stage's worker.

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
    """A stage's step, as its first worker saw it.

    Attributes:
        start_s, end_s: of the whole, until its results were there.
        notes: in their order; empty where only the whole was noted.
    """

    start_s: float
    end_s: float
    notes: tuple[Note, ...] = ()

    @property
    def computing_s(self) -> float:
        """Returns the seconds of all computations of the stage; what they waited for doesn't count."""
        return sum(note.end_s - note.start_s - note.waited_s for note in self.notes if note.what == RUN)


@final
@dataclasses.dataclass(frozen=True)
class StepNotes:
    """The notes of one step, of all its stages.

    Attributes:
        start_s, end_s: as the program that asked for it saw it: from its call until all stages were done.
        stages: in the order of the layers.
    """

    start_s: float
    end_s: float
    stages: tuple[StageNotes, ...]

    @property
    def step_s(self) -> float:
        """Returns the seconds of the whole step."""
        return self.end_s - self.start_s

    @property
    def answer_s(self) -> float:
        """Returns the seconds from the last stage's end to the program's knowing it."""
        return self.end_s - max(stage.end_s for stage in self.stages)
