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

from alpa_dejavu.playground._gradient import WorkerGradient
from alpa_dejavu.playground._learner import Learner
from alpa_dejavu.playground._mover import Mover
from alpa_dejavu.playground._network import Flow, Network, Paths
from alpa_dejavu.playground._queue import Message, Process, Queue
from alpa_dejavu.playground._recorder import Recorder
from alpa_dejavu.playground._world import Computing, Exchange, Program, Worker, World, change, stalled
from alpa_dejavu.playground.history import COMPUTING, FAILED, SENDING
from alpa_dejavu.playground.job import Job, Until
from alpa_dejavu.problem import Cluster


@final
class VirtualWorld(World):
    """All workers, with messages and gradients that take virtual seconds; a `mover` moves samples among them."""

    def __init__(self, job: Job, cluster: Cluster, learner: Learner, until: Until, seed: int, recorder: Recorder,
                 num_bytes: float) -> None:  # fmt: skip
        super().__init__(job.worker_hosts(cluster), num_bytes, learner, recorder, until, seed)
        self.workers = {number: self._worker(number) for number in range(self.size)}
        send_samples = functools.partial(self.send, own_stream=True)
        self.mover = None if job.moves is None else Mover(job, job.moves, seed, self, send_samples)
        self._faults, self._draws = Queue(), itertools.count()
        self._network = Network()
        self._paths = Paths(cluster, self.hosts, self._network)
        self._compute_s = np.broadcast_to(np.asarray(job.compute_s, np.float64), self.size).tolist()
        self._spread, self._samples, self._drop = job.spread, job.samples, job.drop
        self._noise = [np.random.default_rng([seed, 2, n]) for n in range(self.size)] if job.spread else []
        self._slower: list[list[float]] = [[] for _ in range(self.size)]
        self._spoilers: list[list[Callable[[WorkerGradient], float]]] = [[] for _ in range(self.size)]
        self._owed_s = [0.0] * self.size  # for others' micro-batches
        self._shares: dict[frozenset[int], list[float]] = collections.defaultdict(list)

    def send(self, source: int, target: int, tag: Hashable, payload: Any, num_bytes: float,
             own_stream: bool = False) -> None:  # fmt: skip
        """Sends a message, behind those under way from and to the same workers, or in the own stream of these."""
        message = Message(source, payload, num_bytes, self.now_s)
        if not (self.present[source] and self.present[target]):
            return
        came_s = self.came_s[source], self.came_s[target]

        def deliver() -> None:
            if self.present[source] and self.present[target] and came_s == (self.came_s[source], self.came_s[target]):
                self._mail.put(target, tag, message)

        if source == target:
            self._queue.put(self.now_s, deliver)
            return
        latency_s, most, over = self._paths.path(source, target)
        self.recorder.sent(self.hosts[source], self.hosts[target], num_bytes)
        sending = self.recorder.timeline.begin(source, SENDING, self.now_s, target)

        def arrive() -> None:
            self.recorder.timeline.finish(sending, self.now_s + latency_s)
            self._queue.put(self.now_s + latency_s, deliver)

        stream = source, target, own_stream
        if num_bytes > 0 or self._paths.cut(source, target) or self._network.busy(stream):
            self._network.start(Flow(over, most, num_bytes, arrive, stream), self.now_s)
        else:
            arrive()

    def compute_seconds(self, number: int, samples: int | None = None) -> float:
        seconds = self._compute_s[number] * math.prod(self._slower[number])
        if self._spread:
            seconds *= math.exp(self._spread * self._noise[number].standard_normal())
        return seconds if samples is None else seconds * samples / self._samples(number)

    def begin(self, exchange: Exchange) -> None:
        """Starts an exchange on all workers that are there once faults have done what they do at second 0."""
        self._run = exchange.run
        self._queue.put(0.0, lambda: self._begin(exchange.run, self.live))

    def _begin(self, run: Callable[[Worker], Program], numbers: Sequence[int]) -> None:
        super()._begin(run, numbers)
        if self.mover is not None:
            for number in numbers:
                self.spawn(self.workers[number], self.mover.receive(self.workers[number]))

    # What faults use.

    def fault_generator(self) -> np.random.Generator:
        """Returns random numbers that nobody else has, for a fault."""
        return np.random.default_rng([self._seed, 5, next(self._draws)])

    def start(self, number: int) -> None:
        """Brings a worker back, or a new one; it counts its steps from those that the others have begun."""
        if self.present[number]:
            return
        worker = self.workers[number]
        self.recorder.timeline.finish_all(number, FAILED, self.now_s)
        self._begun[number] = max(self._begun[n] for n in (number, *self.live))
        self.came_s[number], self.first_step[number] = self.now_s, self._begun[number]
        worker.adopt(self.learner.start(number), 0)
        worker.state = self.learner.state(worker.params)
        self._set_there(number, True)
        self._begin(self._run, (number,))

    def crash(self, number: int) -> bool:
        """Takes a worker away, its programs, and messages from it and to it; returns whether it was there."""
        if not self.present[number]:
            return False
        for process in [*self._processes[number]]:
            self.cancel(process)
        self._mail.clear(number)
        for flow in self._network.flows():
            if number in flow.stream[:2]:
                self._network.stop(flow.stream)
        self.recorder.timeline.lose(number, self.now_s)
        self._set_there(number, False)
        return True

    def slow(self, number: int, factor: float, ends: bool = False) -> None:
        """Has a worker take `factor` times as long for gradients that it begins from now on, or ends that."""
        change(self._slower[number], factor, ends)

    def spoil(self, number: int, spoiler: Callable[[WorkerGradient], float], ends: bool = False) -> None:
        """Has a function change each gradient begun from now on, or ends that; it returns the seconds of delay."""
        change(self._spoilers[number], spoiler, ends)

    def compute_again(self, number: int, share: float) -> tuple[int, float]:
        """Has the next worker compute a share of a gradient, late by so long; returns who, and the seconds."""
        helper = next((n for n in (*self.live, *self.live) if n > number), self.live[0])
        waits_s = share * self.compute_seconds(helper)
        if helper != number:
            self._owed_s[helper] += waits_s
        return helper, waits_s

    def scale_link(self, a: int, b: int, factor: float, ends: bool = False) -> None:
        """Gives the link between two hosts a factor of its rate, 0 to cut it, beside other factors; or ends that."""
        factors = self._shares[frozenset((a, b))]
        change(factors, factor, ends)
        self._paths.scale(a, b, math.prod(factors))

    # The engine.

    def run(self, told: Callable[[], None]) -> str:
        """Runs until nothing happens any more or the end, and calls `told` after each event; returns why it ended."""
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
                self._network.pop().told()
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
        return stalled({number: self._mail.waited_for(number) for number in self.live if not self._is_done(number)})

    def _had_their_steps(self) -> bool:
        """Whether all workers have had their steps; one that came later may lack some that it can't take alone."""
        had = [number for number in self.live if self._is_done(number)]
        return bool(had) and all(self.came_s[number] for number in self.live if number not in had)

    def _resume_at(self, time_s: float, process: Process, value: Any) -> None:
        queue = self._faults if process.number is None else self._queue
        queue.put(time_s, lambda: self._resume(process, value), process)

    def _compute(self, process: Process, wanted: Computing) -> None:
        worker, number = wanted.worker, wanted.worker.number
        self._computing[process] = math.inf
        if self.finished(number):
            return
        self._computing[process] = self.now_s
        seconds = self.compute_seconds(number, None if wanted.rows is None else len(wanted.rows))
        if self.mover is not None:
            seconds += self.mover.before(worker, self._begun[number])
        gradient = self.learner.gradient(number, self._begun[number], worker.version, worker.params, wanted.rows,
                                         None if self._drop is None else self._drop[number])  # fmt: skip
        seconds += self._owed_s[number]
        self._owed_s[number] = 0.0
        waits_s = sum(spoiler(gradient) for spoiler in self._spoilers[number])
        self._begun[number] += 1
        computing = self.recorder.timeline.begin(number, COMPUTING, self.now_s)

        def computed() -> None:
            self.recorder.timeline.finish(computing, self.now_s)
            del self._computing[process]
            self.recorder.computed(number, seconds)
            self._resume(process, gradient)

        self._queue.put(self.now_s + seconds + waits_s, computed, process)
