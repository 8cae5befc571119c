"""A worker, and all that its programs can do: compute, send, receive, sleep, update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Hashable
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground._gradient import Gradient, Vector

if TYPE_CHECKING:
    from alpa_dejavu.playground._world import World

__all__ = ["Computing", "Effect", "Message", "Program", "Receiving", "Sleeping", "Worker"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Message:
    """A message that a worker sent to another one.

    Attributes:
        sender: the number of the worker that sent it.
        payload: what it brings; arrays in it must not be changed, as nothing is copied.
        num_bytes: its bytes, as counted on links.
        sent_s: when it was sent.
    """

    sender: int
    payload: Any
    num_bytes: float
    sent_s: float


@final
@dataclasses.dataclass(frozen=True)
class Computing:
    """Waiting for a gradient of one's own; gives the `Gradient`."""

    worker: Worker
    rows: NDArray[np.int64] | None = None


@final
@dataclasses.dataclass(frozen=True)
class Receiving:
    """Waiting for messages with a tag; gives a list of them, by the numbers of their senders."""

    worker: Worker
    tag: Hashable
    count: int | Callable[[], int]
    timeout_s: float | None

    def needed(self) -> int:
        """Returns how many messages are waited for, as of now."""
        return self.count() if callable(self.count) else self.count


@final
@dataclasses.dataclass(frozen=True)
class Sleeping:
    """Waiting for virtual seconds; gives None."""

    seconds: float


Effect: TypeAlias = "Computing | Receiving | Sleeping"
Program: TypeAlias = Generator[Effect, Any, None]
"""A generator that yields what it waits for, and is sent what came of it."""


@final
class Worker:
    """A worker, as the programs on it see it.

    Attributes:
        number: its number, from 0.
        params: its parameters, shape (P,); never changed in place, but replaced.
        state: its optimizer's state.
        version: how many times its parameters were updated or replaced by newer ones.
        world: all workers, and what an exchange may know of them.
        generator: random numbers of its own.
    """

    def __init__(self, world: World, number: int, params: Vector, state: Any, generator: np.random.Generator) -> None:
        self.world, self.number, self.params, self.state, self.generator = world, number, params, state, generator
        self.version = 0

    def replica(self) -> Worker:
        """Returns a second set of the parameters and the optimizer's state on the same worker, such as a server's."""
        made = Worker(self.world, self.number, self.params, self.state, self.generator)
        made.version = self.version
        return made

    @property
    def finished(self) -> bool:
        """Returns whether the worker has had its number of steps, so that `compute` won't be gone on from."""
        return self.world.finished(self.number)

    def compute(self, rows: NDArray[np.int64] | None = None) -> Computing:
        """Yield it to compute a gradient at `params` as they are now; gives a `Gradient` when the seconds are over.

        Where each worker has had its number of steps (`Until.steps`), the program isn't gone on with.

        Args:
            rows: indices of training samples, which take their share of a batch's seconds; None: its next batch.
        """
        return Computing(self, rows)

    def send(self, target: int, tag: Hashable, payload: Any = None, num_bytes: float = 0.0) -> None:
        """Sends a message, which nothing waits for; one to a worker itself is there at once, and counts no bytes."""
        self.world.send(self.number, target, tag, payload, num_bytes)

    def receive(
        self, tag: Hashable, count: int | Callable[[], int] = 1, timeout_s: float | None = None
    ) -> Receiving:
        """Yield it to wait for messages with a tag; gives a list of `Message`, ordered by sender, then arrival.

        Args:
            tag: what the sender named; one program of a worker can wait for a tag at a time.
            count: how many; a function is asked again with each message, and when workers come and go.
            timeout_s: after so many seconds it gives those that are there.
        """
        return Receiving(self, tag, count, timeout_s)

    def sleep(self, seconds: float) -> Sleeping:
        """Yield it to wait for virtual seconds."""
        return Sleeping(seconds)

    def spawn(self, program: Program) -> None:
        """Starts another program on this worker, such as a server's."""
        self.world.spawn(self, program)

    def update(self, gradient: Vector, *sources: Gradient, version: int | None = None) -> None:
        """Updates parameters and optimizer's state by a gradient, shape (P,).

        Args:
            gradient: what the optimizer takes, such as a mean of several workers' gradients.
            *sources: the gradients that it was made of: their staleness is counted, and that they aren't lost.
            version: the version that staleness is counted from; None: the worker's own.
        """
        now = self.version if version is None else version
        for source in sources:
            self.world.recorder.applied(source, now - source.version)
        self.params, self.state = self.world.learner.updated(self.params, self.state, gradient)
        self.version += 1

    def update_each(self, source: Gradient) -> None:
        """Updates parameters by each of a gradient's samples, one after the other, instead of by their mean."""
        self.world.recorder.applied(source, self.version - source.version)
        self.params, self.state = self.world.learner.updated_each(self.params, self.state, source.rows)
        self.version += 1

    def drop(self, gradient: Gradient) -> None:
        """Counts a gradient that won't be applied."""
        self.world.recorder.dropped(gradient)

    def adopt(self, params: Vector, version: int) -> None:
        """Replaces the parameters by those of a version that came from elsewhere."""
        self.params, self.version = params, version
