"""The parameters that a server has, and the gradients that it waits for, where workers are lost and come back."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import final

from alpa_dejavu.playground._gradient import Gradient, Vector
from alpa_dejavu.playground._worker import Message, Worker
from alpa_dejavu.playground._world import World
from alpa_dejavu.playground.exchanges._collectives import mean_gradient

__all__ = ["Held", "counted", "had_their_steps", "is_here", "replace"]


@final
class Held:
    """The parameters that a server has. Where its worker was lost and came back they are those of the beginning, as of
    a newer version than all that it had sent, and what it had applied is undone.
    """

    def __init__(self, worker: Worker, combine: Callable[[Sequence[Gradient]], Vector] = mean_gradient) -> None:
        world, self._combine = worker.world, combine
        self._worker, self._model, self._applied = worker, worker.replica(), collections.Counter[int]()
        before: Held | None = world.board.get("held")
        world.board["held"] = self
        if before is not None and before.version:
            self._model.version = before.version + 1
            world.shown = self._model.params
            before._undo()

    @property
    def version(self) -> int:
        """Returns how many updates were made, and times that they were undone."""
        return self._model.version

    @property
    def params(self) -> Vector:
        """Returns the parameters, shape (P,)."""
        return self._model.params

    def update(self, got: Mapping[int, Message]) -> None:
        """Updates by the mean, or what else makes one, of some workers' gradients, by their numbers."""
        gradients = [message.payload for _, message in sorted(got.items())]
        self._applied.update(self.version - gradient.version for gradient in gradients)
        self._model.update(self._combine(gradients), *gradients)
        self._worker.world.shown = self._model.params

    def _undo(self) -> None:
        recorder = self._worker.world.recorder
        for staleness, gradients in self._applied.items():
            recorder.undone(gradients, staleness)
        recorder.note(f"the server on worker {self._worker.number} was lost with its parameters, and began again with "
                      "those of the beginning; what it had applied is among the lost updates")  # fmt: skip

    def reply(self, message: Message) -> None:
        """Sends the parameters to whom a gradient is from."""
        if is_here(self._worker.world, message):
            params = self._model.params, self._model.version
            self._worker.send(message.sender, "params", params, self._worker.world.num_bytes)


def is_here(world: World, message: Message) -> bool:
    """Returns whether the worker that sent a message wasn't lost since, even if it came back."""
    return world.there[message.sender] and message.sent_s >= world.came_s[message.sender]


def counted(world: World, got: Mapping[int, Message]) -> list[int]:
    """Returns the workers that needn't be waited for any more: those of the gradients that aren't lost."""
    return [number for number, message in got.items() if is_here(world, message)]


def had_their_steps(world: World) -> set[int]:
    """Returns the workers that have sent the last gradient of their steps."""
    last: set[int] = world.board.setdefault("last", set())
    return last


def replace(got: dict[int, Message], message: Message, drop: Callable[[Gradient], None]) -> None:
    """Adds a gradient to others; one that its worker sent before it was lost gives way to it."""
    if message.sender in got:
        drop(got[message.sender].payload)
    got[message.sender] = message
