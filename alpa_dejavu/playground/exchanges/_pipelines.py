"""Pipelines whose stages compute at parameters of different ages, and remedies of that."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu.playground._arrays import Vector
from alpa_dejavu.playground._gradient import WorkerGradient
from alpa_dejavu.playground._world import Exchange, Program, Worker
from alpa_dejavu.playground.exchanges._all_reduce import all_reduce, mean
from alpa_dejavu.playground.exchanges._server import serves
from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from jaxtyping import Int

_REMEDIES = ("stash", "2bw", "predict", "rate")


@final
@dataclasses.dataclass(frozen=True)
class PipeDream(Exchange):
    """Each worker is a pipeline of S stages that never drains: stage i of S computes a gradient, forward and backward,
    at its parameters of S - i updates before (weight stashing). All pipelines update by the mean of their gradients,
    around a ring.

    Stages are consecutive leaves of the parameters' pytree, about as many in each; where there are fewer leaves than
    stages, parts of about equal size. A gradient's seconds are those between two that leave the pipeline; how it fills
    at the beginning isn't counted. A history's staleness is that of the first stage. As with an all-reduce, a worker
    that is lost in the midst of a ring, or comes back, has the others wait for ever.

    Attributes:
        remedy: "stash": none. "2bw": updates are by the mean of S gradients, all at the parameters of one update
            before. "predict": a stage computes at its old parameters plus S - i times the moving average of their
            changes. "rate": a stage's changes are divided by S - i, where that is above 1.
        smoothing: the share that a moving average of changes keeps with each change; at 0 it is the last change, which
            an optimizer with momentum goes on with.

    References:
        Narayanan and others, PipeDream: Generalized Pipeline Parallelism for DNN Training, SOSP 2019 (stash).
        Narayanan, Phanishayee, Shi, Chen and Zaharia, Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021 (2bw).
        Chen, Yang and Cheng, Efficient and Robust Parallel DNN Training through Model Parallelism on Multi-GPU
        Platform, 2018 (SpecTrain: predict).
        Yang and others, PipeMare: Asynchronous Pipeline Parallel DNN Training, MLSys 2021 (rate; it also lets the
        division fade out, which ours doesn't).
    """

    stages: int = 4
    remedy: str = "stash"
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        checks.count("pipedream", "stages", self.stages)
        checks.one_of("pipedream", "remedy", self.remedy, _REMEDIES)
        checks.share("pipedream", "smoothing", self.smoothing)

    def run(self, worker: Worker) -> Program:
        accumulated = self.stages if self.remedy == "2bw" else 1
        delays = self._delays(worker)
        oldest = 1 if self.remedy == "2bw" else self.stages - 1
        in_flight, waiting = worker.replica(), list[WorkerGradient]()
        # The last versions, the newest first, each with its moving average of changes.
        stash = collections.deque([(worker.params, np.zeros_like(worker.params))], maxlen=oldest + 1)
        for number in itertools.count():
            in_flight.adopt(self._aged(stash, delays), max(worker.version - oldest, 0))
            waiting.append((yield in_flight.compute()))
            if len(waiting) < accumulated and not worker.finished:
                continue
            own = mean([gradient.values for gradient in waiting])
            total = yield from all_reduce(worker, ("gradients", number), own, "ring")
            before, momentum = stash[0]
            worker.update(total, *waiting)
            waiting.clear()
            change = worker.params - before
            if self.remedy == "rate":
                change = change / np.maximum(delays, 1).astype(np.float32)
                worker.adopt(np.where(delays > 1, before + change, worker.params), worker.version)
            kept = np.float32(self.smoothing)
            stash.appendleft((worker.params, kept * momentum + (1 - kept) * change))

    def _delays(self, worker: Worker) -> Int[np.ndarray, " P"]:
        """Returns how many updates late each parameter is."""
        size, leaves = len(worker.params), worker.world.learner.leaves
        if self.remedy == "2bw":
            return np.ones(size, np.int64)
        parts = np.array_split(leaves if len(leaves) >= self.stages else np.ones(size, np.int64), self.stages)
        return np.repeat(np.arange(self.stages)[::-1], [int(part.sum()) for part in parts])

    def _aged(self, stash: collections.deque[tuple[Vector, Vector]], delays: Int[np.ndarray, " P"]) -> Vector:
        """Returns the parameters that a gradient is computed at; those before the first are the first."""
        aged = stash[0][0].copy()
        for delay in range(1, int(delays.max(initial=0)) + 1):
            params, momentum = stash[min(delay, len(stash) - 1)]
            old = params + np.float32(delay) * momentum if self.remedy == "predict" else params
            aged = np.where(delays == delay, old, aged)
        return aged


@final
@dataclasses.dataclass(frozen=True)
class HetPipeWaves(Exchange):
    """Workers are pipelines that send waves of updates to a server, and may be ahead of the slowest by a few (HetPipe).
    Each has N minibatches in flight, and begins one whenever another is done, at the parameters as they are then. After
    each N, a wave, it sends their changes, and begins no other minibatch until it has the parameters with all workers'
    waves but the last D (wave synchronous parallel).

    A minibatch so lacks at most its pipeline's last N - 1 updates (s_local), and of another worker's those of as many
    minibatches, counted from its own number, as (D + 1)(s_local + 1) + s_local - 1: of a wave the last minibatch but
    one is begun before the parameters of D + 1 waves ago come, and at the end of a wave it is s_local - 1 minibatches
    more. A change counts by one over the number of workers, as in a mean.

    A gradient's seconds are those between two that leave the pipeline; how it fills at the beginning isn't counted.

    Fields: N minibatches are `concurrent`, and a worker may be `distance` D waves ahead of the slowest.

    References:
        Park and others, HetPipe: Enabling Large DNN Training on (Whimpy) Heterogeneous GPU Clusters through Integration
        of Pipelined Model Parallelism and Data Parallelism, USENIX ATC 2020.
    """

    concurrent: int = 4
    distance: int = 0
    server: int = 0

    def __post_init__(self) -> None:
        checks.count("hetpipe", "concurrent", self.concurrent)
        checks.not_negative("hetpipe", "distance", self.distance)

    def run(self, worker: Worker) -> Program:
        if serves(worker, self.server):
            worker.spawn(self._serve(worker))
        return self._train(worker)

    def _train(self, worker: Worker) -> Program:
        in_flight, pipeline = worker.replica(), _PipelineWorker(worker, self)
        for _ in range(self.concurrent):
            pipeline.begin()
        while True:
            (message,) = yield worker.receive("minibatch")
            in_flight.adopt(*message.payload)
            gradient = yield in_flight.compute()
            before = worker.params
            worker.update(gradient.values, gradient)
            change = (worker.params - before) / np.float32(len(worker.world.live))
            worker.adopt(before + change, worker.version)
            pipeline.end(change)
            pipeline.begin()

    def _serve(self, worker: Worker) -> Program:
        world, model, waiting = worker.world, worker.replica(), set[int]()
        waves = dict.fromkeys(world.live, 0)

        def allowed() -> list[int]:
            for lost in set(waves).difference(world.live):
                del waves[lost]
            return sorted(n for n in waiting.intersection(waves) if waves[n] - min(waves.values()) <= self.distance)

        while True:
            messages = yield worker.receive("wave", lambda: 0 if allowed() else 1)
            for message in messages:
                model.adopt(model.params + message.payload, model.version + 1)
                # A worker that came back goes on with the fastest.
                waves[message.sender] = waves.get(message.sender, max(waves.values(), default=1) - 1) + 1
                waiting.add(message.sender)
            world.shown = model.params
            for member in allowed():
                waiting.remove(member)
                worker.send(member, "params", model.params, world.num_bytes)


@final
class _PipelineWorker:
    """A pipeline's minibatches: messages of a worker to itself, each with the parameters that it is computed at."""

    def __init__(self, worker: Worker, settings: HetPipeWaves) -> None:
        self._worker, self._settings = worker, settings
        self._changes, self._count = np.zeros_like(worker.params), 0  # since the last wave
        self._waits, self._later, self._last = False, 0, False

    def begin(self) -> None:
        """Puts in a minibatch, now or when parameters have come."""
        if self._waits:
            self._later += 1
        else:
            self._worker.send(self._worker.number, "minibatch", (self._worker.params, self._worker.version))

    def end(self, change: Vector) -> None:
        """Adds a minibatch's change to the wave, and sends that if it is whole, or if no other minibatch comes."""
        self._changes, self._count, self._last = self._changes + change, self._count + 1, self._worker.finished
        if self._count == self._settings.concurrent or (self._last and not self._waits):
            self._push()

    def _push(self) -> None:
        worker = self._worker
        worker.send(self._settings.server, "wave", self._changes, worker.world.num_bytes)
        self._changes, self._count, self._waits = np.zeros_like(self._changes), 0, True
        worker.spawn(self._pull())

    def _pull(self) -> Program:
        """Waits for the server's parameters, adds what the pipeline changed meanwhile, and puts in what waits."""
        (message,) = yield self._worker.receive("params")
        self._worker.adopt(message.payload + self._changes, self._worker.version)
        self._waits = False
        if self._last and self._count:
            self._push()
        later, self._later = self._later, 0
        for _ in range(later):
            self.begin()
