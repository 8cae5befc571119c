"""The queue of events, the programs that they are for, and the messages that these wait for."""

from __future__ import annotations

import collections
import dataclasses
import heapq
import math
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any, final


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Message:
    """A message from a worker, by its number; arrays in the payload must not be changed, as nothing is copied."""

    sender: int
    payload: Any
    num_bytes: float
    sent_s: float


@final
@dataclasses.dataclass(frozen=True)
class Receiving:
    """Waiting for messages with a tag on a worker, by its number; gives a list of them, by their senders' numbers."""

    number: int
    tag: Hashable
    count: int | Callable[[], int]
    timeout_s: float | None

    def needed(self) -> int:
        return self.count() if callable(self.count) else self.count


@final
@dataclasses.dataclass(frozen=True)
class Sleeping:
    """Waiting for virtual seconds; gives None."""

    seconds: float


@final
class Process:
    """A program that is under way on a worker, by its number, and what it waits for; faults run on none."""

    __slots__ = ("number", "program", "waits")

    def __init__(self, program: Generator[Any, Any, None], number: int | None) -> None:
        self.program, self.number = program, number
        self.waits: object = program


@final
class Queue:
    """Actions by their time; of those at the same time, the one that was put in first comes first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None], Process | None, object]] = []
        self._order = 0

    def put(self, time_s: float, action: Callable[[], None], process: Process | None = None) -> None:
        """Puts in an action; one for a process is left out once that waits for something else."""
        self._order += 1
        heapq.heappush(self._heap, (time_s, self._order, action, process, process and process.waits))

    def next_s(self) -> float:
        """Returns the time of the next action; infinity if there is none."""
        while self._heap and self._heap[0][3] is not None and self._heap[0][3].waits is not self._heap[0][4]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def pop(self) -> Callable[[], None]:
        return heapq.heappop(self._heap)[2]


@final
class Mail:
    """The messages of some workers by their tags, and who waits for them; `resume` goes on with a program, `used` is
    told of each message that one takes, and of the worker that it runs on.
    """

    def __init__(self, size: int, resume: Callable[[Process, Sequence[Message]], None],
                 used: Callable[[Message, int], None]) -> None:  # fmt: skip
        self._resume, self._used = resume, used
        self._came: list[dict[Hashable, list[Message]]] = [collections.defaultdict(list) for _ in range(size)]
        self._waiting: list[dict[Hashable, tuple[Process, Receiving]]] = [{} for _ in range(size)]

    def put(self, number: int, tag: Hashable, message: Message) -> None:
        """Adds a message to a worker, and goes on with the program that has all of its messages then."""
        self._came[number][tag].append(message)
        self._look_at(number, tag)

    def wait(self, process: Process, wanted: Receiving) -> Sequence[Message] | None:
        """Returns the messages that a program asks for, if they are there already; else it waits for them."""
        waiting = self._waiting[wanted.number]
        if wanted.tag in waiting:
            raise ValueError(f"two programs of worker {wanted.number} wait for {wanted.tag!r}, but one can; give them "
                             "others")  # fmt: skip
        if len(self._came[wanted.number].get(wanted.tag, ())) >= wanted.needed():
            return self._take(wanted)
        waiting[wanted.tag] = process, wanted
        return None

    def give_up(self, wanted: Receiving) -> Sequence[Message]:
        """Ends the waiting for messages; returns those that are there."""
        del self._waiting[wanted.number][wanted.tag]
        return self._take(wanted)

    def ask_again(self, number: int) -> None:
        """Goes on with a worker's programs whose count of messages is a function, where it now says so."""
        for tag in [tag for tag, (_, wanted) in self._waiting[number].items() if callable(wanted.count)]:
            self._look_at(number, tag)

    def forget(self, number: int, process: Process) -> None:
        """Ends all waiting of a worker's program."""
        for tag in [tag for tag, (waiting, _) in self._waiting[number].items() if waiting is process]:
            del self._waiting[number][tag]

    def clear(self, number: int) -> None:
        self._came[number].clear()

    def waited_for(self, number: int) -> list[Hashable]:
        """Returns the tags that programs of a worker wait for."""
        return [*self._waiting[number]]

    def _take(self, wanted: Receiving) -> Sequence[Message]:
        mail = self._came[wanted.number]
        messages, count = mail.pop(wanted.tag, []), wanted.needed()
        if len(messages) > count:
            mail[wanted.tag] = messages[count:]
        for message in messages[:count]:
            self._used(message, wanted.number)
        return sorted(messages[:count], key=lambda message: message.sender)

    def _look_at(self, number: int, tag: Hashable) -> None:
        waiting = self._waiting[number].get(tag)
        if waiting is not None and len(self._came[number].get(tag, ())) >= waiting[1].needed():
            del self._waiting[number][tag]
            self._resume(waiting[0], self._take(waiting[1]))
