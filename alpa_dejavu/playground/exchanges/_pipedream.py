"""Pipelines whose stages compute at parameters of different ages, and remedies of that."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground._exchange import Exchange
from alpa_dejavu.playground._gradient import Gradient, Vector
from alpa_dejavu.playground._world import Program, Worker
from alpa_dejavu.playground.exchanges._all_reduce import all_reduce, mean
from alpa_dejavu.problem import checks

__all__ = ["PipeDream"]

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
        stages: S, the number of stages.
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
        in_flight, waiting = worker.replica(), list[Gradient]()
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

    def _delays(self, worker: Worker) -> NDArray[np.int64]:
        """Returns how many updates late each parameter is, shape (P,)."""
        size, leaves = len(worker.params), worker.world.learner.leaves
        if self.remedy == "2bw":
            return np.ones(size, np.int64)
        parts = np.array_split(leaves if len(leaves) >= self.stages else np.ones(size, np.int64), self.stages)
        return np.repeat(np.arange(self.stages)[::-1], [int(part.sum()) for part in parts])

    def _aged(self, stash: collections.deque[tuple[Vector, Vector]], delays: NDArray[np.int64]) -> Vector:
        """Returns the parameters that a gradient is computed at; those before the first are the first."""
        aged = stash[0][0].copy()
        for delay in range(1, int(delays.max(initial=0)) + 1):
            params, momentum = stash[min(delay, len(stash) - 1)]
            old = params + np.float32(delay) * momentum if self.remedy == "predict" else params
            aged = np.where(delays == delay, old, aged)
        return aged
