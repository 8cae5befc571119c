"""Tiles of tensors on their way from one worker to another: a mailbox in each worker, filled by calls of Ray.

A sender calls the receiver's actor, so nothing but Ray's own connections carries the data. Every message has a key that
both sides derive from the plan: its channel (group, sending and receiving device) and its number on that channel.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import ray

__all__ = ["Counters", "Group", "Mailbox", "MessageKey", "PeerWatch"]

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


class PeerWatch:
    """Whether another worker still lives, asked without waiting for the answer."""

    def __init__(self, peer: Any, rank: int) -> None:
        self._peer = peer
        self._rank = rank
        self._answer: Any = None

    def __call__(self) -> None:
        """Raises RuntimeError if the worker has died."""
        if self._answer is None:
            self._answer = self._peer.answer.remote()
        answered, _ = ray.wait([self._answer], timeout=0)
        if not answered:
            return
        answer, self._answer = self._answer, None
        try:
            ray.get(answer)
        except ray.exceptions.RayActorError as error:
            raise RuntimeError(f"the worker of rank {self._rank}, which should send a tile, has died") from error
