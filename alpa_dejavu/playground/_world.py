"""Workers, all that their programs can do, and the world that they are in, whatever the clock: virtual or a wall's."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, final

import numpy as np

from alpa_dejavu.playground._arrays import Rows, State, Vector
from alpa_dejavu.playground._gradient import WorkerGradient
from alpa_dejavu.playground._learner import Learner
from alpa_dejavu.playground._queue import Mail, Process, Queue, Receiving, Sleeping
from alpa_dejavu.playground._recorder import Recorder
from alpa_dejavu.playground.history import COMPUTING
from alpa_dejavu.playground.job import Until

T = TypeVar("T")


@final
@dataclasses.dataclass(frozen=True)
class Computing:
    """Waiting for a gradient of one's own; gives the `WorkerGradient`."""

    worker: Worker
    rows: Rows | None = None


Effect: TypeAlias = Computing | Receiving | Sleeping
Program: TypeAlias = Generator[Effect, Any, None]
"""A generator that yields what it waits for, and is sent what came of it."""
Subprogram: TypeAlias = Generator[Effect, Any, T]
"""A part of a program, for `yield from`, with what it returns."""


@final
class Worker:
    """A worker, as the programs on it see it, with its number, from 0, and random numbers of its own.

    Attributes:
        params, state: its parameters and its optimizer's state; never changed in place, but replaced.
        version: how many times its parameters were updated or replaced by newer ones.
    """

    def __init__(self, world: World, number: int, params: Vector, state: State, generator: np.random.Generator) -> None:
        self.world, self.number, self.params, self.state, self.generator = world, number, params, state, generator
        self.version = 0

    def replica(self) -> Worker:
        """Returns a second set of the parameters and the optimizer's state on the same worker, such as a server's."""
        second = Worker(self.world, self.number, self.params, self.state, self.generator)
        second.version = self.version
        return second

    @property
    def finished(self) -> bool:
        """Returns whether the worker has had its number of steps, so that `compute` won't be gone on from."""
        return self.world.finished(self.number)

    def compute(self, rows: Rows | None = None) -> Computing:
        """Yield it to compute a gradient at `params` as they are now; gives a `WorkerGradient` after its seconds.

        Where each worker has had its number of steps (`Until.steps`), the program isn't gone on with. Rows are indices
        of training samples, which take their share of a batch's seconds; None: its next batch.
        """
        return Computing(self, rows)

    def send(self, target: int, tag: Hashable, payload: Any = None, num_bytes: float = 0.0) -> None:
        """Sends a message, which nothing waits for; one to a worker itself is there at once, and counts no bytes."""
        self.world.send(self.number, target, tag, payload, num_bytes)

    def receive(self, tag: Hashable, count: int | Callable[[], int] = 1, timeout_s: float | None = None) -> Receiving:
        """Yield it to wait for messages with a tag; gives a list of `Message`, ordered by sender, then arrival.

        One program of a worker can wait for a tag at a time. A function for how many is asked again with each message,
        and when workers come and go. After `timeout_s` it gives those that are there.
        """
        return Receiving(self.number, tag, count, timeout_s)

    def sleep(self, seconds: float) -> Sleeping:
        """Yield it to wait for virtual seconds."""
        return Sleeping(seconds)

    def spawn(self, program: Program) -> None:
        """Starts another program on this worker, such as a server's."""
        self.world.spawn(self, program)

    def update(self, gradient: Vector, *sources: WorkerGradient) -> None:
        """Updates parameters and optimizer's state by a gradient, such as a mean of several workers' ones.
        Of the sources that it was made of the staleness is counted, and that they aren't lost.
        """
        for source in sources:
            self.world.recorder.applied(source, self.version - source.version)
        self.params, self.state = self.world.learner.updated(self.params, self.state, gradient)
        self.version += 1

    def update_each(self, source: WorkerGradient) -> None:
        """Updates parameters by each of a gradient's samples, one after the other, instead of by their mean."""
        self.world.recorder.applied(source, self.version - source.version)
        self.params, self.state = self.world.learner.updated_each(self.params, self.state, source.rows)
        self.version += 1

    def drop(self, gradient: WorkerGradient) -> None:
        """Counts a gradient that won't be applied."""
        self.world.recorder.dropped(gradient)

    def adopt(self, params: Vector, version: int) -> None:
        """Replaces the parameters by those of a version that came from elsewhere."""
        self.params, self.version = params, version


class World(abc.ABC):
    """All workers, their messages and the clock; programs run on all of them, or on one whose process this is.

    Attributes:
        size, hosts: the number of workers, and for each of them the index of its host.
        num_bytes: the bytes of the parameters, or of a gradient.
        live, present: the numbers of the workers that are there, in order, and whether each is; all know it at once.
        came_s: when each worker came the last time, 0 at the beginning.
        first_step: the step at which each worker came: one that nobody had begun by then.
        shown: the parameters that the history is told of; None: the mean of the workers'.
        board: what exchanges share between workers without a message, such as a sum that all of them end up with; real
            workers have one each (`board_is_shared`).
    """

    workers: Mapping[int, Worker]
    board_is_shared = True

    def __init__(self, hosts: Sequence[int], num_bytes: float, learner: Learner, recorder: Recorder, until: Until,
                 seed: int) -> None:  # fmt: skip
        self.hosts, self.size = tuple(hosts), len(hosts)
        self.num_bytes, self.learner, self.recorder = num_bytes, learner, recorder
        self.live: tuple[int, ...] = tuple(range(self.size))
        self.present, self.came_s, self.first_step = [True] * self.size, [0.0] * self.size, [0] * self.size
        self.now_s, self.board = 0.0, dict[Hashable, Any]()
        self.shown: Vector | None = None
        self._seed, self._until, self.ends_s = seed, until, until.seconds
        self._queue, self._mail = Queue(), Mail(self.size, self._resume, recorder.used)
        self._processes: list[list[Process]] = [[] for _ in range(self.size)]
        self._begun = [0] * self.size
        # Since when each program computes; infinity: it is held, as its worker has had its steps.
        self._computing: dict[Process, float] = {}
        self._main: dict[int, Process] = {}

    def _worker(self, number: int) -> Worker:
        params = self.learner.start(number)
        return Worker(self, number, params, self.learner.state(params), np.random.default_rng([self._seed, 3, number]))

    @abc.abstractmethod
    def send(self, source: int, target: int, tag: Hashable, payload: Any, num_bytes: float) -> None:
        """Sends a message from a worker to another one; it is lost where one of both isn't there."""

    @abc.abstractmethod
    def compute_seconds(self, number: int, samples: int | None = None) -> float:
        """Returns how many seconds a worker computes on some samples that it begins now, or on a batch of them."""

    def generator(self, *name: int) -> np.random.Generator:
        """Returns random numbers of a name, such as a round's: the same for all workers."""
        return np.random.default_rng([self._seed, 4, *name])

    def finished(self, number: int) -> bool:
        return self._until.steps is not None and self._begun[number] >= self._until.steps

    def spawn(self, worker: Worker | None, program: Program) -> Process:
        """Starts a program on a worker or, for faults, beside all workers, at the present time; returns it."""
        process = Process(program, None if worker is None else worker.number)
        if worker is not None:
            self._processes[worker.number].append(process)
        self._resume_at(self.now_s, process, None)
        return process

    def cancel(self, process: Process) -> None:
        """Ends a program of a worker, whatever it waits for."""
        number = process.number
        assert number is not None, "faults aren't cancelled"
        since_s = self._computing.pop(process, math.inf)
        if since_s < math.inf:
            self.recorder.cancelled(number, self.now_s - since_s)
            self.recorder.timeline.finish_all(number, COMPUTING, self.now_s)
        process.waits = None  # what is in the queue for it is for another object
        process.program.close()
        if process in self._processes[number]:
            self._processes[number].remove(process)
        self._mail.forget(number, process)

    def computing_s(self) -> list[float]:
        """Returns for how many seconds each worker has computed gradients that aren't there yet."""
        seconds = [0.0] * self.size
        for process, since_s in self._computing.items():
            assert process.number is not None, "faults don't compute"
            seconds[process.number] += max(self.now_s - since_s, 0.0)
        return seconds

    def _begin(self, run: Callable[[Worker], Program], numbers: Sequence[int]) -> None:
        for number in numbers:
            self._main[number] = self.spawn(self.workers[number], run(self.workers[number]))

    def _is_done(self, number: int) -> bool:
        """Whether a worker has had its steps, to the end of its program or until it would compute again."""
        is_held = any(self._computing.get(process, 0.0) == math.inf for process in self._processes[number])
        return self.finished(number) and (is_held or self._main[number] not in self._processes[number])

    def _set_there(self, number: int, present: bool) -> None:
        self.present[number] = present
        self.live = tuple(n for n in range(self.size) if self.present[n])
        for number in self.live:
            self._mail.ask_again(number)

    def _resume_at(self, time_s: float, process: Process, value: Any) -> None:
        self._queue.put(time_s, lambda: self._resume(process, value), process)

    def _resume(self, process: Process, value: Any) -> None:
        process.waits = None
        try:
            effect = process.program.send(value)
        except StopIteration:
            if process.number is not None and process in self._processes[process.number]:
                self._processes[process.number].remove(process)
            return
        process.waits = object()  # another one each time, as a program may yield the same effect again
        if isinstance(effect, Receiving):
            self._receive(process, effect)
        elif isinstance(effect, Computing):
            self._compute(process, effect)
        elif isinstance(effect, Sleeping):
            self._resume_at(self.now_s + effect.seconds, process, None)
        else:
            raise TypeError(f"a program yielded {effect!r}, but must yield what compute, receive or sleep return")

    def _receive(self, process: Process, wanted: Receiving) -> None:
        messages = self._mail.wait(process, wanted)
        if messages is not None:
            self._resume_at(self.now_s, process, messages)
        elif wanted.timeout_s is not None:

            def late() -> None:
                self._resume(process, self._mail.give_up(wanted))

            self._queue.put(self.now_s + wanted.timeout_s, late, process)

    @abc.abstractmethod
    def _compute(self, process: Process, wanted: Computing) -> None:
        """Computes a gradient, and goes on with the program when its seconds are over."""


def change(values: list[T], value: T, ends: bool) -> None:
    """Adds a value, such as a factor, to those that hold now, or takes it away."""
    if ends:
        values.remove(value)
    else:
        values.append(value)


def stalled(waits: Mapping[int, Sequence[Hashable]]) -> str:
    """Returns the end of a run in which nothing goes on, though workers wait for messages with some tags."""
    waiting: dict[str, list[str]] = {}
    for number, tags in waits.items():
        for tag in tags:
            waiting.setdefault(" ".join(map(str, _parts(tag)[:2])), []).append(str(number))
    told = "; ".join(f"{', '.join(numbers)} for {words}" for words, numbers in waiting.items())
    return f"stalled: nothing is under way any more, but these workers wait: {told}"


def _parts(tag: Hashable) -> list[Hashable]:
    """The words and numbers of a tag, of which the first two name a message and its step."""
    return [word for part in tag for word in _parts(part)] if isinstance(tag, tuple) else [tag]


class Exchange(abc.ABC):
    """A way in which workers train together; `alpa_dejavu.playground.testing.check_exchange` says if one is sound.

    Exchanges are frozen dataclasses of their settings: what changes while they run lies in the workers, the world's
    board, and the program's own variables.
    """

    @abc.abstractmethod
    def run(self, worker: Worker) -> Program:
        """Runs on each worker from its start on; yields what it waits for.

        A server is a program that one of the workers spawns. A worker that was lost and comes back runs this anew,
        with the parameters that it had at the beginning.

        >>> from alpa_dejavu.playground import Job, Until, simulate
        >>> from alpa_dejavu.testing import example_cluster
        >>> class Alone(Exchange):
        ...     def run(self, worker):
        ...         while True:
        ...             gradient = yield worker.compute()
        ...             worker.update(gradient.values, gradient)
        >>> history = simulate(Job(None, 0.5, num_bytes=0), example_cluster(), Alone(), until=Until(steps=3))
        >>> history.end_s, history.end, history.num_bytes
        (1.5, 'steps', 0.0)
        """
