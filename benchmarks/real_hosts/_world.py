"""One real worker in this process, on the clock on the wall, and how it computes; the others are connections."""

from __future__ import annotations

import functools
import math
import queue
import statistics
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias, cast, final

import numpy as np

from alpa_dejavu.playground._arrays import Vector
from alpa_dejavu.playground._gradient import WorkerGradient
from alpa_dejavu.playground._learner import Learner
from alpa_dejavu.playground._queue import Message, Process
from alpa_dejavu.playground._recorder import Recorder
from alpa_dejavu.playground._world import Computing, Exchange, World
from alpa_dejavu.playground.job import Job, Until
from real_hosts._wires import Outbox

__all__ = ["LOST", "PARAMS", "SHOWN", "Entry", "Log", "RealWorld", "Told", "Work"]

Entry: TypeAlias = tuple[str, tuple[Any, ...]]
"""The name of a method of a recorder, or one of those below, and its arguments."""
Told: TypeAlias = tuple[float, int, list[Entry]]
"""A moment, the worker that it is of, and what happened then."""
PARAMS, SHOWN, LOST = "params", "shown", "lost"
"""A worker has other parameters; the history is told of others; a worker is lost."""
_CALIBRATED_S = 0.2
_MEASURED = 5


@final
class Work:
    """A thread that computes gradients, one after the other, each as often as it takes to fill its seconds.

    Attributes:
        repeats: how often a batch's gradient is computed.
    """

    def __init__(self, job: Job) -> None:
        self._batch, self.repeats = job.samples(0), 1
        self._compute = _repeated(job)
        self._waiting: queue.SimpleQueue[tuple[WorkerGradient, Callable[[], None]]] = queue.SimpleQueue()
        threading.Thread(target=self._go, daemon=True).start()

    def calibrate(self, at: Vector, processor_s: float, repeats: int | None = None) -> None:
        """Finds out how often a gradient has to be computed to take some seconds of a processor, if it isn't given."""
        rows, count = np.arange(self._batch), 16
        self._compute(at, rows, 1)  # compiles
        while repeats is None:
            start = time.process_time()
            self._compute(at, rows, count)
            seconds = time.process_time() - start
            if seconds > _CALIBRATED_S:
                repeats = max(round(processor_s * count / seconds), 1)
            count *= 2
        self.repeats = repeats

    def measured_s(self, at: Vector) -> float:
        """Returns the seconds that a gradient at some parameters takes now: the median of a few."""
        rows, seconds = np.arange(self._batch), []
        for _ in range(_MEASURED):
            start = time.monotonic()
            self._compute(at, rows, self.repeats)
            seconds.append(time.monotonic() - start)
        return statistics.median(seconds)

    def put(self, gradient: WorkerGradient, done: Callable[[], None]) -> None:
        """Computes a gradient once all before it are computed; `done` is called by a thread then."""
        self._waiting.put((gradient, done))

    def _go(self) -> None:
        while True:
            gradient, done = self._waiting.get()
            times = max(round(self.repeats * len(gradient.rows) / self._batch), 1)
            gradient.computed = self._compute(gradient.at, gradient.rows, times)
            done()


def _repeated(job: Job) -> Callable[[Vector, Any, int], Vector]:
    """Returns a function that computes a gradient so many times, each time at the same parameters."""
    assert job.problem is not None, "it was checked"
    import jax

    from alpa_dejavu.playground._gradient import programs

    inputs, targets = job.problem.train
    gradient = programs(job.problem, job.optimizer).gradient

    @jax.jit
    def many(at: Any, inputs: Any, targets: Any, times: Any) -> Any:
        # Each time depends on the one before, or the compiler would leave it out.
        return jax.lax.fori_loop(0, times, lambda _, before: gradient(at + 0.0 * before, inputs, targets), at * 0.0)

    def values(at: Vector, rows: Any, times: int) -> Vector:
        return np.asarray(many(at, inputs[rows], targets[rows], times))

    return values


@final
class Log:
    """A recorder of one worker that counts nothing: each call of a method is an event that is told."""

    def __init__(self, tell: Callable[[float, list[Entry]], None]) -> None:
        self._tell, self._entries = tell, list[Entry]()

    def used(self, message: Message, receiver: int) -> None:
        """Tells nothing: messages that are taken count for conditions alone, which aren't checked."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return functools.partial(self.add, name)

    def add(self, name: str, *arguments: Any) -> None:
        """Adds an event, without gradients, which who counts doesn't look at."""
        self._entries.append((name, tuple(None if isinstance(value, WorkerGradient) else value for value in arguments)))

    def tell(self, now_s: float) -> None:
        """Hands on the events of a moment, if there are any."""
        if self._entries:
            self._tell(now_s, [*self._entries])
            self._entries.clear()


@final
class RealWorld(World):
    """All workers as one of them sees them, whose programs run here."""

    board_is_shared = False

    def __init__(self, number: int, hosts: Sequence[int], num_bytes: float, learner: Learner, log: Log, until: Until,
                 seed: int, work: Work, outboxes: Mapping[int, Outbox]) -> None:  # fmt: skip
        super().__init__(hosts, num_bytes, learner, cast(Recorder, log), until, seed)
        self.number, self.workers = number, {number: self._worker(number)}
        self._log, self._work, self._outboxes = log, work, outboxes
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._start_s, self._told = 0.0, (self.workers[number].params, None)  # type: float, tuple[Any, Any]
        self.sent, self.came = [0] * self.size, [0] * self.size

    # Called by other threads.

    def arrived(self, source: int, sent: Any) -> None:
        """Takes a message of another worker."""
        tag, payload, num_bytes, sent_s, begun = sent

        def deliver() -> None:
            self._begun[source] = max(self._begun[source], begun)
            self.came[source] += 1
            self._mail.put(self.number, tag, Message(source, payload, num_bytes, sent_s))

        self._events.put(deliver)

    def lose(self, number: int) -> None:
        """Takes another worker away, whose connection has ended."""
        self._events.put(lambda: self._set_there(number, False))

    def stop(self) -> None:
        """Has `run` return."""
        self._events.put(None)

    @property
    def passive(self) -> bool:
        """Returns whether nothing happens here until a message comes."""
        computes = any(since_s < math.inf for since_s in list(self._computing.values()))
        return self._events.empty() and self._queue.next_s() == math.inf and not computes and bool(self._main)

    @property
    def done(self) -> bool:
        """Returns whether the worker has had its steps."""
        return self._is_done(self.number)

    @property
    def waits(self) -> list[Hashable]:
        """Returns the tags of messages that programs wait for."""
        return self._mail.waited_for(self.number)

    # What exchanges use.

    def send(self, source: int, target: int, tag: Hashable, payload: Any, num_bytes: float) -> None:
        """Sends a message to another worker; it is lost where that isn't there."""
        if not self.present[target]:
            return
        if target == source:
            message = Message(source, payload, num_bytes, self.now_s)
            self._queue.put(self.now_s, lambda: self._mail.put(source, tag, message))
            return
        self._log.sent(self.hosts[source], self.hosts[target], num_bytes)
        self.sent[target] += 1
        self._outboxes[target].put((tag, payload, num_bytes, self.now_s, self._begun[source]), round(num_bytes))

    def compute_seconds(self, number: int, samples: int | None = None) -> float:
        """Raises NotImplementedError: nobody knows for how long a real worker computes."""
        raise NotImplementedError

    # The engine.

    def run(self, exchange: Exchange, start_s: float) -> None:
        """Runs the worker's programs from a time of `time.monotonic` on, until `stop` is called."""
        time.sleep(max(start_s - time.monotonic(), 0.0))
        self._start_s = start_s
        self._begin(exchange.run, [self.number])
        while True:
            self._tick()
            while self._queue.next_s() <= self.now_s:
                self._queue.pop()()
                self._tick()
            left_s = self._queue.next_s() - self.now_s
            try:
                event = self._events.get(timeout=None if left_s == math.inf else left_s)
            except queue.Empty:
                continue
            if event is None:
                return
            self.now_s = time.monotonic() - self._start_s
            event()

    def _tick(self) -> None:
        """Tells what has happened, and looks at the clock."""
        params = self.workers[self.number].params
        if params is not self._told[0]:
            self._log.add(PARAMS, params)
        if self.shown is not self._told[1]:
            self._log.add(SHOWN, self.shown)
        self._told = params, self.shown
        self._log.tell(self.now_s)
        self.now_s = time.monotonic() - self._start_s

    def _compute(self, process: Process, wanted: Computing) -> None:
        worker, number, since_s = wanted.worker, wanted.worker.number, self.now_s
        self._computing[process] = math.inf
        if self.finished(number):
            return
        self._computing[process] = since_s
        rows = self.learner.batch(number) if wanted.rows is None else wanted.rows
        gradient = self.learner.gradient(number, self._begun[number], worker.version, worker.params, rows)
        self._begun[number] += 1
        waits = process.waits

        def computed() -> None:
            if process.waits is not waits:  # it was cancelled
                return
            del self._computing[process]
            self._log.computed(number, self.now_s - since_s)
            self._resume(process, gradient)

        self._work.put(gradient, lambda: self._events.put(computed))
