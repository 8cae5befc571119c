"""All workers in virtual time: the queue of events, messages on the network, and programs that wait.

Of events at the same time, ends of flows come first, by the order in which the flows began; then faults; then all
others, by the order in which they were put into the queue. Rates are settled when all that happens at a time has
happened.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, final

import numpy as np

from alpa_dejavu.playground._exchange import Exchange
from alpa_dejavu.playground._learner import Learner, Vector
from alpa_dejavu.playground._network import Flow, Network
from alpa_dejavu.playground._paths import Paths
from alpa_dejavu.playground._queue import Process, Queue
from alpa_dejavu.playground._recorder import Recorder
from alpa_dejavu.playground._timeline import COMPUTING, FAILED, SENDING
from alpa_dejavu.playground._worker import Computing, Message, Program, Receiving, Sleeping, Worker
from alpa_dejavu.playground.job import Job, Until, draws
from alpa_dejavu.problem import Cluster

__all__ = ["World"]


@final
class World:
    """All workers, their messages and the clock.

    Attributes:
        size: the number of workers.
        hosts: for each worker the index of its host.
        num_bytes: the bytes of the parameters, or of a gradient.
        live: the numbers of the workers that are there, in order; all workers know it at once.
        there: whether each worker is.
        came_s: when each worker came the last time, 0 at the beginning.
        first_step: the step at which each worker came: one that nobody had begun by then.
        now_s: the virtual time in seconds.
        ends_s: when it ends at the latest.
        shown: the parameters that the history is told of; None: the mean of the workers'.
        board: what exchanges share between workers without a message, such as a sum that all of them end up with.
    """

    def __init__(self, job: Job, cluster: Cluster, learner: Learner, until: Until, seed: int, recorder: Recorder,
                 num_bytes: float) -> None:  # fmt: skip
        self.hosts = job.worker_hosts(cluster)
        self.size, self.num_bytes, self.learner, self.recorder = len(self.hosts), num_bytes, learner, recorder
        self.live: tuple[int, ...] = tuple(range(self.size))
        self.there, self.came_s, self.first_step = [True] * self.size, [0.0] * self.size, [0] * self.size
        self.now_s, self.shown, self.board = 0.0, None, dict[Hashable, Any]()  # type: float, Any, Any
        self.workers = [self._worker(n, seed) for n in range(self.size)]
        self._seed, self._until, self.ends_s = seed, until, until.seconds
        self._queue, self._faults, self._draws = Queue(), Queue(), itertools.count()
        self._network = Network()
        self._paths = Paths(cluster, self.hosts, self._network)
        self._mail: list[dict[Hashable, list[Message]]] = [collections.defaultdict(list) for _ in range(self.size)]
        self._waiting: list[dict[Hashable, tuple[Process, Receiving]]] = [{} for _ in range(self.size)]
        self._processes: list[list[Process]] = [[] for _ in range(self.size)]
        self._compute_s = np.broadcast_to(np.asarray(job.compute_s, np.float64), self.size).tolist()
        self._spread, self._batch = job.spread, job.batch
        self._noise = [draws(seed, 2, n) for n in range(self.size)] if job.spread else []
        self._slower: list[list[float]] = [[] for _ in range(self.size)]
        self._spoilt: dict[int, Callable[[int, int, Vector], Vector]] = {}
        self._shares: dict[frozenset[int], list[float]] = collections.defaultdict(list)
        self._begun = [0] * self.size
        # Since when each program computes; infinity: it is held, as its worker has had its steps.
        self._computing: dict[Process, float] = {}
        self._main: dict[int, Process] = {}

    def _worker(self, number: int, seed: int) -> Worker:
        params = self.learner.start(number)
        return Worker(self, number, params, self.learner.state(params), draws(seed, 3, number))

    # What exchanges use.

    def generator(self, *name: int) -> np.random.Generator:
        """Returns random numbers of a name, such as a round's: the same for all workers."""
        return draws(self._seed, 4, *name)

    def send(self, source: int, target: int, tag: Hashable, payload: Any, num_bytes: float) -> None:
        """Sends a message from a worker to another one; it is lost where one of both isn't there."""
        message = Message(source, payload, num_bytes, self.now_s)
        if not (self.there[source] and self.there[target]):
            return
        came_s = self.came_s[source], self.came_s[target]

        def deliver() -> None:
            if self.there[source] and self.there[target] and came_s == (self.came_s[source], self.came_s[target]):
                self._mail[target][tag].append(message)
                self._look_at(target, tag)

        if source == target:
            self._queue.put(self.now_s, deliver)
            return
        latency_s, most, over = self._paths.path(source, target)
        self.recorder.sent(self.hosts[source], self.hosts[target], num_bytes)
        sending = self.recorder.timeline.begin(source, SENDING, self.now_s, target)

        def arrive() -> None:
            self.recorder.timeline.finish(sending, self.now_s + latency_s)
            self._queue.put(self.now_s + latency_s, deliver)

        if num_bytes > 0 or self._paths.cut(source, target):
            self._network.start(Flow(over, most, num_bytes, (source, target, arrive)), self.now_s)
        else:
            arrive()

    def compute_seconds(self, number: int, samples: int | None = None) -> float:
        """Returns how many seconds a worker computes on some samples that it begins now, or on a batch of them."""
        seconds = self._compute_s[number] * math.prod(self._slower[number])
        if self._spread:
            seconds *= math.exp(self._spread * self._noise[number].standard_normal())
        return seconds if samples is None else seconds * samples / self._batch

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
            self.recorder.lost += 1
            self.recorder.busy_s[number] += self.now_s - since_s
            self.recorder.timeline.finish_all(number, COMPUTING, self.now_s)
        process.waits = None  # what is in the queue for it is for another object
        process.program.close()
        if process in self._processes[number]:
            self._processes[number].remove(process)
        for tag in [tag for tag, (waiting, _) in self._waiting[number].items() if waiting is process]:
            del self._waiting[number][tag]

    def begin(self, exchange: Exchange) -> None:
        """Starts an exchange on all workers that are there once faults have done what they do at second 0."""
        self._exchange = exchange

        def every() -> None:
            for number in self.live:
                self._main[number] = self.spawn(self.workers[number], exchange.run(self.workers[number]))

        self._queue.put(0.0, every)

    def computing_s(self) -> list[float]:
        """Returns for how many seconds each worker has computed gradients that aren't there yet."""
        seconds = [0.0] * self.size
        for process, since_s in self._computing.items():
            assert process.worker is not None, "faults don't compute"
            seconds[process.worker.number] += max(self.now_s - since_s, 0.0)
        return seconds

    # What faults use.

    def fault_generator(self) -> np.random.Generator:
        """Returns random numbers that nobody else has, for a fault."""
        return draws(self._seed, 5, next(self._draws))

    def start(self, number: int) -> None:
        """Brings a worker back that was lost, or a new one, with the parameters of the beginning; it counts its steps
        from those that the others have begun.
        """
        if self.there[number]:
            return
        worker = self.workers[number]
        self.recorder.timeline.finish_all(number, FAILED, self.now_s)
        self._begun[number] = max(self._begun[n] for n in (number, *self.live))
        self.came_s[number], self.first_step[number] = self.now_s, self._begun[number]
        worker.adopt(self.learner.start(number), 0)
        worker.state = self.learner.state(worker.params)
        self._set_there(number, True)
        self._main[number] = self.spawn(worker, self._exchange.run(worker))

    def crash(self, number: int) -> bool:
        """Takes a worker away, its programs, and messages from it and to it; returns whether it was there."""
        if not self.there[number]:
            return False
        for process in [*self._processes[number]]:
            self.cancel(process)
        self._mail[number].clear()
        for flow in self._network.flows():
            if number in flow.told[:2]:
                self._network.stop(flow)
        self.recorder.timeline.lose(number, self.now_s)
        self._set_there(number, False)
        return True

    def slow(self, number: int, factor: float, ends: bool = False) -> None:
        """Has a worker take `factor` times as long for gradients that it begins from now on, beside other slow-downs;
        or ends such a slow-down.
        """
        _change(self._slower[number], factor, ends)

    def spoil(self, number: int, change: Callable[[int, int, Vector], Vector] | None) -> None:
        """Has a worker's gradients that it begins from now on be changed, by a function of its number, its step and the
        right gradient; None: no more.
        """
        self._spoilt.pop(number, None)
        if change is not None:
            self._spoilt[number] = change

    def scale_link(self, a: int, b: int, factor: float, ends: bool = False) -> None:
        """Gives the link between two hosts a factor of its rate, 0 to cut it, beside other factors; or ends that."""
        factors = self._shares[frozenset((a, b))]
        _change(factors, factor, ends)
        self._paths.scale(a, b, math.prod(factors))

    # The engine.

    def run(self, told: Callable[[], None]) -> str:
        """Runs until nothing happens any more or the end; returns why it ended.

        Args:
            told: called after each event.
        """
        while True:
            self._network.settle(self.now_s)
            time_s = min(self._network.next_s(), self._queue.next_s())
            if time_s < math.inf or not self._had_their_steps() or self._network.flows():
                time_s = min(time_s, self._faults.next_s())
            if time_s == math.inf or time_s > self._until.seconds:
                break
            self.recorder.passing(time_s)
            self.now_s = time_s
            while self._network.next_s() <= time_s:
                self._network.pop().told[2]()
            while self._faults.next_s() <= time_s:
                self._faults.pop()()
            while self._queue.next_s() <= time_s:
                self._queue.pop()()
            told()
        under_way = min(self._network.next_s(), self._queue.next_s()) < math.inf or self._network.flows()
        if time_s != math.inf:
            self.recorder.passing(self._until.seconds)
            self.now_s = self._until.seconds
            if under_way:
                return "time"
        if not self.live:
            return "no worker is left"
        if self._had_their_steps():
            return "steps"
        waits = {number: [*self._waiting[number]] for number in self.live if not self._is_done(number)}
        return f"stalled: nothing is under way any more, but these workers wait for messages with these tags: {waits}"

    def _had_their_steps(self) -> bool:
        """Whether all workers have had their steps; one that came later may lack some that it can't take alone."""
        had = [number for number in self.live if self._is_done(number)]
        return bool(had) and all(self.came_s[number] for number in self.live if number not in had)

    def _is_done(self, number: int) -> bool:
        """Whether a worker has had its steps, to the end of its program or until it would compute again."""
        held = any(self._computing.get(process, 0.0) == math.inf for process in self._processes[number])
        return self.finished(number) and (held or self._main[number] not in self._processes[number])

    def _resume_at(self, time_s: float, process: Process, value: Any) -> None:
        queue = self._faults if process.worker is None else self._queue
        queue.put(time_s, lambda: self._resume(process, value), process)

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

    def _compute(self, process: Process, wanted: Computing) -> None:
        worker, number = wanted.worker, wanted.worker.number
        self._computing[process] = math.inf
        if self.finished(number):
            return
        self._computing[process] = self.now_s
        seconds = self.compute_seconds(number, None if wanted.rows is None else len(wanted.rows))
        gradient = self.learner.gradient(number, self._begun[number], worker.version, worker.params, wanted.rows)
        if number in self._spoilt:
            gradient.spoil = functools.partial(self._spoilt[number], number, self._begun[number])
        self._begun[number] += 1
        computing = self.recorder.timeline.begin(number, COMPUTING, self.now_s)

        def computed() -> None:
            self.recorder.timeline.finish(computing, self.now_s)
            del self._computing[process]
            self.recorder.computed(number, seconds)
            self._resume(process, gradient)

        self._queue.put(self.now_s + seconds, computed, process)

    def _receive(self, process: Process, wanted: Receiving) -> None:
        number = wanted.worker.number
        if wanted.tag in self._waiting[number]:
            raise ValueError(f"two programs of worker {number} wait for {wanted.tag!r}, but one can; give them others")
        if len(self._mail[number].get(wanted.tag, ())) >= wanted.needed():
            self._resume_at(self.now_s, process, self._taken(wanted))
            return
        self._waiting[number][wanted.tag] = process, wanted
        if wanted.timeout_s is not None:
            def late() -> None:
                del self._waiting[number][wanted.tag]
                self._resume(process, self._taken(wanted))

            self._queue.put(self.now_s + wanted.timeout_s, late, process)

    def _taken(self, wanted: Receiving) -> Sequence[Message]:
        mail = self._mail[wanted.worker.number]
        found, count = mail.pop(wanted.tag, []), wanted.needed()
        if len(found) > count:
            mail[wanted.tag] = found[count:]
        for message in found[:count]:
            self.recorder.used(message, wanted.worker.number)
        return sorted(found[:count], key=lambda message: message.sender)

    def _look_at(self, number: int, tag: Hashable) -> None:
        """Goes on with a program if it has all the messages that it waits for."""
        found = self._waiting[number].get(tag)
        if found is not None and len(self._mail[number].get(tag, ())) >= found[1].needed():
            del self._waiting[number][tag]
            self._resume(found[0], self._taken(found[1]))

    def _set_there(self, number: int, there: bool) -> None:
        self.there[number] = there
        self.live = tuple(n for n in range(self.size) if self.there[n])
        for number in self.live:
            for tag in [tag for tag, (_, wanted) in self._waiting[number].items() if callable(wanted.count)]:
                self._look_at(number, tag)


def _change(factors: list[float], factor: float, ends: bool) -> None:
    if ends:
        factors.remove(factor)
    else:
        factors.append(factor)
