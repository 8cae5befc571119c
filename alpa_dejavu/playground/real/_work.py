"""The real work of a gradient: it is computed again and again, so that it takes as long as it is to."""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, final

import numpy as np

from alpa_dejavu.playground._gradient import Gradient, Vector
from alpa_dejavu.playground.job import Job

__all__ = ["Work"]

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
        self._waiting: queue.SimpleQueue[tuple[Gradient, Callable[[], None]]] = queue.SimpleQueue()
        threading.Thread(target=self._go, daemon=True).start()

    def calibrate(self, at: Vector, processor_s: float, repeats: int | None = None) -> None:
        """Finds out how often a gradient has to be computed to take some seconds of a processor.

        Args:
            at: parameters.
            processor_s: the seconds.
            repeats: how often it is, where that is known.
        """
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
        rows, found = np.arange(self._batch), []
        for _ in range(_MEASURED):
            start = time.monotonic()
            self._compute(at, rows, self.repeats)
            found.append(time.monotonic() - start)
        return statistics.median(found)

    def put(self, gradient: Gradient, done: Callable[[], None]) -> None:
        """Computes a gradient once all before it are computed; `done` is called by a thread then."""
        self._waiting.put((gradient, done))

    def _go(self) -> None:
        while True:
            gradient, done = self._waiting.get()
            times = max(round(self.repeats * len(gradient.rows) / self._batch), 1)
            gradient.found = self._compute(gradient.at, gradient.rows, times)
            done()


def _repeated(job: Job) -> Callable[[Vector, Any, int], Vector]:
    """Returns a function that computes a gradient so many times, each time at the same parameters."""
    assert job.problem is not None, "it was checked"
    import jax

    from alpa_dejavu.playground._programs import programs

    inputs, targets = job.problem.train
    gradient = programs(job.problem, job.optimizer).gradient

    @jax.jit
    def many(at: Any, inputs: Any, targets: Any, times: Any) -> Any:
        # Each time depends on the one before, or the compiler would leave it out.
        return jax.lax.fori_loop(0, times, lambda _, before: gradient(at + 0.0 * before, inputs, targets), at * 0.0)

    def values(at: Vector, rows: Any, times: int) -> Vector:
        return np.asarray(many(at, inputs[rows], targets[rows], times))

    return values
