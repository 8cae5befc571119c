"""The messages that came to workers, and the programs that wait for messages."""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable, Sequence
from typing import final

from alpa_dejavu.playground._queue import Process
from alpa_dejavu.playground._worker import Message, Receiving

__all__ = ["Mail"]


@final
class Mail:
    """The messages of some workers by their tags, and who waits for them.

    Args:
        size: the number of workers.
        resume: goes on with a program that has the messages that it waited for.
        used: told of each message that a program takes, and of the worker that it runs on.
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
        """Returns the messages that a program asks for, if they are there already; else it waits for them.

        Raises:
            ValueError: another program of the worker waits for the same.
        """
        number = wanted.worker.number
        if wanted.tag in self._waiting[number]:
            raise ValueError(f"two programs of worker {number} wait for {wanted.tag!r}, but one can; give them others")
        if len(self._came[number].get(wanted.tag, ())) >= wanted.needed():
            return self._taken(wanted)
        self._waiting[number][wanted.tag] = process, wanted
        return None

    def give_up(self, wanted: Receiving) -> Sequence[Message]:
        """Ends the waiting for messages; returns those that are there."""
        del self._waiting[wanted.worker.number][wanted.tag]
        return self._taken(wanted)

    def ask_again(self, number: int) -> None:
        """Goes on with a worker's programs whose count of messages is a function, where it now says so."""
        for tag in [tag for tag, (_, wanted) in self._waiting[number].items() if callable(wanted.count)]:
            self._look_at(number, tag)

    def forget(self, number: int, process: Process) -> None:
        """Ends all waiting of a worker's program."""
        for tag in [tag for tag, (waiting, _) in self._waiting[number].items() if waiting is process]:
            del self._waiting[number][tag]

    def clear(self, number: int) -> None:
        """Loses the messages that came to a worker."""
        self._came[number].clear()

    def waited_for(self, number: int) -> list[Hashable]:
        """Returns the tags that programs of a worker wait for."""
        return [*self._waiting[number]]

    def _taken(self, wanted: Receiving) -> Sequence[Message]:
        mail = self._came[wanted.worker.number]
        found, count = mail.pop(wanted.tag, []), wanted.needed()
        if len(found) > count:
            mail[wanted.tag] = found[count:]
        for message in found[:count]:
            self._used(message, wanted.worker.number)
        return sorted(found[:count], key=lambda message: message.sender)

    def _look_at(self, number: int, tag: Hashable) -> None:
        """Goes on with a program if it has all the messages that it waits for."""
        found = self._waiting[number].get(tag)
        if found is not None and len(self._came[number].get(tag, ())) >= found[1].needed():
            del self._waiting[number][tag]
            self._resume(found[0], self._taken(found[1]))
