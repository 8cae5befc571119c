"""How long a stage's worker is busy for each forward and backward, from the notes of its instructions.

A worker has one thread for its instructions: it computes, cuts and posts what others need, waits for what it needs,
and frees. What it does besides computing is counted to the computation that it is done for: what is received to the one
that follows, what is freed to the one before. Waiting is counted to none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

RUN, SEND, RECEIVE, OTHER = "run", "send", "receive", "other"


@final
@dataclasses.dataclass(frozen=True)
class StageMessage:
    """A message between stages that a worker's instruction has sent or received, and when."""

    key: str  # the message's key, the same where it is sent and where it is received
    # asked_s, there_s: when the receiver asked for the message, and when it had it: the later of asking and of its
    # arrival where it didn't wait. In the sender's note both are the end of sending it
    asked_s: float
    there_s: float


@final
@dataclasses.dataclass(frozen=True)
class Note:
    """A note of one instruction that a stage's worker ran: of which kind it was, and when it began and ended."""

    what: str  # "run" (a computation, until its results were there), "send", "receive", or "other"
    # For "run", the number of the computation among those of all S stages: forward passes are 0..S-1, backward passes
    # S..2S-1 from the last stage to the first, updates follow; None for what allocates or gathers
    task: int | None
    start_s: float  # start_s, end_s: when the instruction began and ended
    end_s: float
    waited_s: float = 0.0  # the seconds of it in which the worker waited for other stages
    messages: tuple[StageMessage, ...] = ()  # the messages that it sent or received


@final
@dataclasses.dataclass(frozen=True)
class StageNotes:
    """The notes that a stage's first worker took of one step: its start and end, and each instruction."""

    start_s: float  # start_s, end_s: when the stage's part of the step began, and when its results were there
    end_s: float
    notes: tuple[Note, ...] = ()  # the notes of the instructions in their order; empty if only start and end were noted

    @property
    def computing_s(self) -> float:
        """Returns the seconds of all computations of the stage in the step; waiting for other stages doesn't count."""
        return sum(note.end_s - note.start_s - note.waited_s for note in self.notes if note.what == RUN)


@final
@dataclasses.dataclass(frozen=True)
class StepNotes:
    """The notes of one step of a pipeline: its start and end, and the notes of each stage's worker."""

    start_s: float  # start_s, end_s: when the program called the step, and when it saw that all stages were done
    end_s: float
    stages: tuple[StageNotes, ...]  # the notes of each stage, in the order of the layers

    @property
    def step_s(self) -> float:
        """Returns the seconds of the whole step, as the program that asked for it saw it."""
        return self.end_s - self.start_s

    @property
    def answer_s(self) -> float:
        """Returns the seconds from the end of the last stage until the program knows that the step is done."""
        return self.end_s - max(stage.end_s for stage in self.stages)


@final
@dataclasses.dataclass(frozen=True)
class TaskTime:
    """The measured times of one task: the forward or the backward pass of one micro-batch in a stage."""

    start_s: float  # start_s, end_s: when the computation began and ended
    end_s: float
    busy_s: float  # that the worker was busy with the task: the computation, and what is done for it but sending
    post_s: float  # that it was busy with sending the results, which it does when the receiver is due
    # When the task's input from another stage was sent and when it was there, of several messages the one that was
    # under way for the longest; None where it takes nothing from other stages
    transfer: tuple[float, float] | None
    waited: bool  # whether the worker had to wait for that input

    @property
    def transfer_s(self) -> float | None:
        """Returns the seconds that its input from another stage was under way; None where nothing was received."""
        return None if self.transfer is None else max(0.0, self.transfer[1] - self.transfer[0])


@final
@dataclasses.dataclass(frozen=True)
class StageTasks:
    """The measured times of a stage's forward and backward passes in one training step."""

    forwards: tuple[TaskTime, ...]  # forwards, backwards: the times of each micro-batch's forward and backward pass
    backwards: tuple[TaskTime, ...]
    before_s: float  # `before_s`, `after_s`: busy with other work, before the first and after the last of these passes
    after_s: float
    update: tuple[float, float]  # start and end, in seconds, of what comes after the last of them


def stage_tasks(stage: int, num_stages: int, noted: StageNotes, sent_s: Mapping[str, float]) -> StageTasks:
    """Returns the times of a stage's passes in a step, by its worker's notes, and when messages were sent, by key."""
    forward, backward = stage, 2 * num_stages - 1 - stage
    notes = noted.notes
    tasks = [n for n, note in enumerate(notes) if note.what == RUN and note.task in (forward, backward)]
    owners = _owners(notes, tasks)
    ends = [*(note.start_s for note in notes[1:]), noted.end_s]
    busy, posts = dict.fromkeys(tasks, 0.0), dict.fromkeys(tasks, 0.0)
    before, after = (notes[0].start_s if notes else noted.end_s) - noted.start_s, 0.0
    messages: dict[int, list[tuple[float, StageMessage]]] = {}
    for n, (note, owner, end) in enumerate(zip(notes, owners, ends, strict=True)):
        seconds = end - note.start_s - note.waited_s
        if owner is None:
            before, after = (before + seconds, after) if not tasks or n < tasks[0] else (before, after + seconds)
            continue
        (posts if note.what == SEND else busy)[owner] += seconds
        if note.what == RECEIVE:
            took = messages.setdefault(owner, [])
            took += [(sent_s[message.key], message) for message in note.messages if message.key in sent_s]
    times: dict[int, list[TaskTime]] = {forward: [], backward: []}
    for n in tasks:
        inputs = messages.get(n, [])
        spans = [(sent, message.there_s) for sent, message in inputs]
        transfer = max(spans, key=lambda span: span[1] - span[0], default=None)
        task = notes[n].task
        assert task is not None, "tasks are chosen by their number"
        waited = any(message.there_s > message.asked_s for _, message in inputs)
        times[task].append(TaskTime(notes[n].start_s, notes[n].end_s, busy[n], posts[n], transfer, waited))
    last = tasks[-1] if tasks else -1
    rest = [n for n, owner in enumerate(owners) if owner is None and n > last]
    update = notes[rest[0]].start_s if rest else noted.end_s
    return StageTasks(tuple(times[forward]), tuple(times[backward]), before, after, (update, noted.end_s))


def _owners(notes: tuple[Note, ...], tasks: list[int]) -> list[int | None]:
    """For each note the task that it is done for, as an index into the notes; None before the first and after all."""
    owners: list[int | None] = []
    position = 0
    for n, note in enumerate(notes):
        while position < len(tasks) and tasks[position] < n:
            position += 1
        following = tasks[position] if position < len(tasks) else None
        previous = tasks[position - 1] if position else None
        if following == n:
            owners.append(n)
        elif following is None and owners[-1:] == [None]:
            owners.append(None)
        elif note.what in (SEND, OTHER):
            owners.append(previous)
        elif note.what == RECEIVE or (note.what == RUN and previous is not None):
            owners.append(following)
        else:
            owners.append(None)
    return owners
