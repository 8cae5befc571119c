"""Tiles of tensors on their way from one worker to another: a mailbox in each worker, filled by calls of Ray.

A sender calls the receiver's actor, so nothing but Ray's own connections carries the data. Every message has a key that
both sides derive from the plan: its channel (group, sending and receiving device) and its number on that channel.

A wait ends: the peer is asked every second what it does. Seconds in which it, and all whom it waits for, compute
nothing are counted, up to a time-out. A peer that computes for long is waited for.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import ray

__all__ = ["TIMEOUT", "Activity", "Counters", "Group", "Mailbox", "MessageKey", "PeerWatch", "peer_timeout_s"]

TIMEOUT = "ALPA_PEER_TIMEOUT_S"
"""The environment variable of the seconds after which a wait for a peer that computes nothing is an error."""
_DEFAULT_TIMEOUT_S = 600.0
_CHECK_S = 1.0

MessageKey = tuple[Hashable, ...]


class Mailbox:
    """Messages that have come in and were not yet taken; the receiving thread waits for the one that it needs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._messages: dict[MessageKey, Any] = {}

    def put(self, messages: Mapping[MessageKey, Any]) -> None:
        """Adds messages."""
        with self._changed:
            self._messages.update(messages)
            self._changed.notify_all()

    def take(self, key: MessageKey, check: Callable[[], None]) -> Any:
        """The message with this key; waits for it.

        Args:
            key: of the message.
            check: called every second while waiting; raises if the message can no longer come.
        """
        with self._changed:
            while key not in self._messages:
                if not self._changed.wait(_CHECK_S):
                    check()
            return self._messages.pop(key)

    def __len__(self) -> int:
        with self._changed:
            return len(self._messages)


class Counters:
    """Numbers the messages of each channel from zero: sender and receiver count alike, so each message has its key."""

    def __init__(self) -> None:
        self._next: collections.Counter[MessageKey] = collections.Counter()

    def key(self, *channel: Hashable) -> MessageKey:
        """The key of the next message on a channel."""
        number = self._next[channel]
        self._next[channel] += 1
        return (*channel, number)


@dataclasses.dataclass(frozen=True)
class Group:
    """Workers that exchange tiles.

    Attributes:
        name: the same in each of its workers.
        rank: of this worker.
        workers: the actor of each rank.
        device_ranks: name of a device -> the rank of its worker.
    """

    name: str
    rank: int
    workers: Sequence[Any]
    device_ranks: Mapping[str, int]


def peer_timeout_s(environment: Mapping[str, str]) -> float:
    """Returns the seconds that a peer which computes nothing is waited for.

    Raises:
        ValueError: the variable isn't a positive number.
    """
    given = environment.get(TIMEOUT, str(_DEFAULT_TIMEOUT_S))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(f"{TIMEOUT} is {given!r}, but must be a positive number; give seconds, or unset it")
    return seconds


@dataclasses.dataclass(frozen=True)
class Activity:
    """The work of a worker at a moment, as it tells those who wait for it.

    Attributes:
        place: names the worker.
        does: a verb and the rest: "computes", "waits for host 0 of mesh 1 in ...", "is idle".
        computes: whether it computes, or at the end of a chain of waits another one does.
    """

    place: str
    does: str
    computes: bool


class PeerWatch:
    """A wait for another worker, which is asked whether it lives and what it does, without waiting for the answer.

    Args:
        peer: the actor.
        rank: its rank in the group.
        what: names what is waited for.
        timeout_s: seconds without computing after which it is given up.
        clock: tells seconds.
    """

    def __init__(
        self, peer: Any, rank: int, what: str, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._peer, self._what, self._timeout_s, self._clock = peer, what, timeout_s, clock
        self._since = clock()
        self._answer: Any = None
        self._known = Activity(f"the worker of rank {rank}", "doesn't answer", computes=False)

    @property
    def computes(self) -> bool:
        """Whether the wait is for something that is being computed."""
        return self._known.computes

    def __str__(self) -> str:
        return f"waits for {self._known.place} in {self._what}"

    def __call__(self) -> None:
        """Looks at the peer.

        Raises:
            RuntimeError: the peer has died.
            TimeoutError: the peer, and all whom it waits for, have computed nothing for too long.
        """
        if self._answer is None:
            self._answer = self._peer.answer.remote()
        answered, _ = ray.wait([self._answer], timeout=0)
        if answered:
            answer, self._answer = self._answer, None
            try:
                self._known = ray.get(answer)
            except ray.exceptions.RayActorError as error:
                raise RuntimeError(f"{self._known.place}, waited for in {self._what}, has died") from error
        if self.computes:
            self._since = self._clock()
        elif self._clock() - self._since > self._timeout_s:
            raise TimeoutError(
                f"it {self}, for {self._timeout_s:g} s in vain, and {self._known.place} {self._known.does}; "
                f"if that only takes longer, set {TIMEOUT} to more seconds, or else report it as a bug"
            )
