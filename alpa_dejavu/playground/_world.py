"""All workers as exchanges see them, and the programs on them, whatever the clock: virtual, or that on the wall."""

from __future__ import annotations

import abc
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from alpa_dejavu.playground._batches import draws
from alpa_dejavu.playground._exchange import Exchange
from alpa_dejavu.playground._learner import Learner
from alpa_dejavu.playground._mail import Mail
from alpa_dejavu.playground._queue import Process, Queue
from alpa_dejavu.playground._recorder import Recording
from alpa_dejavu.playground._timeline import COMPUTING
from alpa_dejavu.playground._worker import Computing, Program, Receiving, Sleeping, Worker
from alpa_dejavu.playground.job import Until

__all__ = ["World", "stalled"]


class World(abc.ABC):
    """All workers, their messages and the clock; programs run on all of them, or on one whose process this is.

    Attributes:
        size: the number of workers.
        hosts: for each worker the index of its host.
        num_bytes: the bytes of the parameters, or of a gradient.
        workers: the workers whose programs run here, by their numbers.
        live: the numbers of the workers that are there, in order; all workers know it at once.
        there: whether each worker is.
        came_s: when each worker came the last time, 0 at the beginning.
        first_step: the step at which each worker came: one that nobody had begun by then.
        now_s: the time in seconds.
        ends_s: when it ends at the latest.
        shown: the parameters that the history is told of; None: the mean of the workers'.
        board: what exchanges share between workers without a message, such as a sum that all of them end up with; real
            workers have one each.
        board_is_shared: whether all workers have the same board.
    """

    workers: Mapping[int, Worker]
    board_is_shared = True

    def __init__(self, hosts: Sequence[int], num_bytes: float, learner: Learner, recorder: Recording, until: Until,
                 seed: int) -> None:  # fmt: skip
        self.hosts, self.size = tuple(hosts), len(hosts)
        self.num_bytes, self.learner, self.recorder = num_bytes, learner, recorder
        self.live: tuple[int, ...] = tuple(range(self.size))
        self.there, self.came_s, self.first_step = [True] * self.size, [0.0] * self.size, [0] * self.size
        self.now_s, self.shown, self.board = 0.0, None, dict[Hashable, Any]()  # type: float, Any, Any
        self._seed, self._until, self.ends_s = seed, until, until.seconds
        self._queue, self._mail = Queue(), Mail(self.size, self._resume, recorder.used)
        self._processes: list[list[Process]] = [[] for _ in range(self.size)]
        self._begun = [0] * self.size
        # Since when each program computes; infinity: it is held, as its worker has had its steps.
        self._computing: dict[Process, float] = {}
        self._main: dict[int, Process] = {}

    def _worker(self, number: int) -> Worker:
        params = self.learner.start(number)
        return Worker(self, number, params, self.learner.state(params), draws(self._seed, 3, number))

    # What exchanges use.

    @abc.abstractmethod
    def send(self, source: int, target: int, tag: Hashable, payload: Any, num_bytes: float) -> None:
        """Sends a message from a worker to another one; it is lost where one of both isn't there."""

    @abc.abstractmethod
    def compute_seconds(self, number: int, samples: int | None = None) -> float:
        """Returns how many seconds a worker computes on some samples that it begins now, or on a batch of them."""

    def generator(self, *name: int) -> np.random.Generator:
        """Returns random numbers of a name, such as a round's: the same for all workers."""
        return draws(self._seed, 4, *name)

    def finished(self, number: int) -> bool:
        """Returns whether a worker has had its number of steps."""
        return self._until.steps is not None and self._begun[number] >= self._until.steps

    def spawn(self, worker: Worker | None, program: Program) -> Process:
        """Starts a program on a worker or, for faults, beside all workers, at the present time; returns it."""
        process = Process(program, worker)
        if worker is not None:
            self._processes[worker.number].append(process)
        self._resume_at(self.now_s, process, None)
        return process

    def cancel(self, process: Process) -> None:
        """Ends a program of a worker, whatever it waits for."""
        assert process.worker is not None, "faults aren't cancelled"
        number = process.worker.number
        since_s = self._computing.pop(process, math.inf)
        if since_s < math.inf:
            self.recorder.cancelled(number, self.now_s - since_s)
            self.recorder.timeline.finish_all(number, COMPUTING, self.now_s)
        process.waits = None  # what is in the queue for it is for another object
        process.program.close()
        if process in self._processes[number]:
            self._processes[number].remove(process)
        self._mail.forget(number, process)

    # The engine.

    def _begin(self, exchange: Exchange, numbers: Sequence[int]) -> None:
        """Starts an exchange on workers."""
        for number in numbers:
            self._main[number] = self.spawn(self.workers[number], exchange.run(self.workers[number]))

    def _is_done(self, number: int) -> bool:
        """Whether a worker has had its steps, to the end of its program or until it would compute again."""
        held = any(self._computing.get(process, 0.0) == math.inf for process in self._processes[number])
        return self.finished(number) and (held or self._main[number] not in self._processes[number])

    def _set_there(self, number: int, there: bool) -> None:
        self.there[number] = there
        self.live = tuple(n for n in range(self.size) if self.there[n])
        for number in self.live:
            self._mail.ask_again(number)

    def _resume_at(self, time_s: float, process: Process, value: Any) -> None:
        self._queue.put(time_s, lambda: self._resume(process, value), process)

    def _resume(self, process: Process, value: Any) -> None:
        process.waits = None
        try:
            effect = process.program.send(value)
        except StopIteration:
            if process.worker is not None and process in self._processes[process.worker.number]:
                self._processes[process.worker.number].remove(process)
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
        found = self._mail.wait(process, wanted)
        if found is not None:
            self._resume_at(self.now_s, process, found)
        elif wanted.timeout_s is not None:
            def late() -> None:
                self._resume(process, self._mail.give_up(wanted))

            self._queue.put(self.now_s + wanted.timeout_s, late, process)

    @abc.abstractmethod
    def _compute(self, process: Process, wanted: Computing) -> None:
        """Computes a gradient, and goes on with the program when its seconds are over."""


def stalled(waits: Mapping[int, Sequence[Hashable]]) -> str:
    """Returns the end of a run in which nothing goes on, though workers wait for messages with some tags."""
    waited = {number: [*tags] for number, tags in waits.items()}
    return f"stalled: nothing is under way any more, but these workers wait for messages with these tags: {waited}"
