"""Counts what happens in a simulation, and looks at the model now and then."""

from __future__ import annotations

import collections
import math
from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu.playground._arrays import Vector
from alpa_dejavu.playground._gradient import WorkerGradient
from alpa_dejavu.playground._queue import Message
from alpa_dejavu.playground.history import FAILED, TIMELINE, History
from alpa_dejavu.playground.job import Job, Until

if TYPE_CHECKING:
    from jaxtyping import Shaped

    from alpa_dejavu.playground._world import World


class Observer:
    """An observer of a run, which does nothing here. `violated_s` is when a condition was first violated."""

    violated_s: float | None = None

    def used(self, sender: int, receiver: int) -> None:
        """Told when a worker's program takes a message with bytes of another worker."""

    def applied(self, gradient: WorkerGradient, staleness: int) -> None:
        """Told when a gradient is applied, before `History.steps` counts it."""

    def passing(self, time_s: float) -> None:
        """Told before time goes on to a moment: until then nothing more happens."""


@final
class WorkerTimeline:
    """The first intervals of workers' time, in the order in which they begin, at most so many."""

    def __init__(self, most: int) -> None:
        self._most, self._rows = most, list[list[float]]()

    def begin(self, worker: int, kind: int, now_s: float, other: int = -1) -> list[float] | None:
        """Returns a new interval of a kind, for `finish`; None if there are enough. `other` is sent to."""
        if len(self._rows) >= self._most:
            return None
        self._rows.append([worker, kind, other, now_s, math.inf])
        return self._rows[-1]

    def finish(self, interval: list[float] | None, now_s: float) -> None:
        """Ends an interval, if it hasn't ended yet."""
        if interval is not None and interval[4] == math.inf:
            interval[4] = now_s

    def lose(self, worker: int, now_s: float) -> None:
        """Ends what a worker that is lost computes, sends and is sent, and begins that it is lost."""
        for interval in self._rows:
            if worker in (interval[0], interval[2]):
                self.finish(interval, now_s)
        self.begin(worker, FAILED, now_s)

    def finish_all(self, worker: int, kind: int, now_s: float) -> None:
        """Ends all intervals of a kind that a worker has."""
        for interval in self._rows:
            if interval[:2] == [worker, kind]:
                self.finish(interval, now_s)

    def intervals(self, end_s: float) -> Shaped[np.ndarray, " intervals"]:
        return np.array([(*row[:4], min(row[4], end_s)) for row in self._rows], TIMELINE)


@final
class Recorder:
    """Figures of a simulation so far, and looks at the model, besides the first and the last: they are spread evenly
    over the end's steps and its seconds, each at whichever comes first.
    """

    def __init__(self, job: Job, until: Until, looks: int, workers: int, intervals: int = 0) -> None:
        self._samples, self._rows = job.samples, list[tuple[float, ...]]()
        self._every_s = until.seconds / max(looks, 1)
        self._every = math.inf if until.steps is None else max(workers * until.steps / max(looks, 1), 1.0)
        self._looks, self._seen, self.steps, self.lost = 0, 0, 0, 0
        self.busy_s, self.worker_steps = [0.0] * workers, [0] * workers
        self._staleness: collections.Counter[int] = collections.Counter()
        self._bytes: dict[tuple[int, int], float] = collections.defaultdict(float)
        self._messages: dict[tuple[int, int], int] = collections.defaultdict(int)
        self.notes: dict[str, None] = {}
        self._sent_bytes, self.timeline = 0.0, WorkerTimeline(intervals)
        self.world: World | None = None
        self.observers: list[Observer] = []

    def computed(self, worker: int, seconds: float) -> None:
        self.busy_s[worker] += seconds
        self.worker_steps[worker] += 1
        self._seen += self._samples(worker)

    def cancelled(self, worker: int, seconds: float) -> None:
        """Counts a gradient that a worker won't compute to its end, and the seconds that it has."""
        self.lost += 1
        self.busy_s[worker] += seconds

    def applied(self, gradient: WorkerGradient, staleness: int) -> None:
        for observer in self.observers:
            observer.applied(gradient, staleness)
        self._staleness[staleness] += 1
        self.steps += 1

    def note(self, text: str) -> None:
        self.notes[text] = None

    def undone(self, gradients: int, staleness: int = 0) -> None:
        """Counts gradients as lost that were applied, so stale, to parameters that are lost."""
        self._staleness[staleness] -= gradients
        self.lost += gradients

    def dropped(self, gradient: WorkerGradient) -> None:
        """Counts a gradient that won't be applied."""
        self.lost += 1
        self.steps += 1

    def used(self, message: Message, receiver: int) -> None:
        if message.num_bytes > 0 and message.sender != receiver:
            for observer in self.observers:
                observer.used(message.sender, receiver)

    def sent(self, a: int, b: int, num_bytes: float) -> None:
        self._bytes[a, b] += num_bytes
        self._messages[a, b] += 1
        self._sent_bytes += num_bytes

    def passing(self, time_s: float) -> None:
        """Looks at the model at the moments before a time that is next."""
        for observer in self.observers:
            observer.passing(time_s)
        while self._every_s < math.inf and self._looks * self._every_s < time_s:
            self._look(self._looks * self._every_s)
            self._looks += 1

    def happened(self, now_s: float) -> None:
        """Looks at the model if as many gradients have been applied as lie between two looks."""
        if self.steps >= self._looks * self._every:
            self._look(now_s)
            self._looks = int(self.steps // self._every) + 1

    def history(self, end: str) -> History:
        assert self.world is not None, "it was begun"
        end_s = self.world.now_s
        self._rows = [row for row in self._rows if row[0] < end_s or end_s == 0]
        params, busy_s = self._look(end_s), np.add(self.busy_s, self.world.computing_s())
        columns = (np.array(column) for column in zip(*self._rows, strict=True))
        time_s, loss, accuracy, consensus, steps, samples, sent_bytes = columns
        links = sorted(self._bytes)
        return History(
            end, time_s, loss, accuracy, consensus, steps.astype(np.int64), samples.astype(np.int64), sent_bytes,
            np.array([self._staleness[k] for k in range(max(self._staleness, default=-1) + 1)], np.int64),
            busy_s, end_s - busy_s, np.array(self.worker_steps, np.int64), np.array(links, np.int64).reshape(-1, 2),
            np.array([self._bytes[link] for link in links]),
            np.array([self._messages[link] for link in links], np.int64), self.lost, params,
            self.timeline.intervals(end_s), tuple(self.notes),
            tuple(observer.violated_s for observer in self.observers),
        )  # fmt: skip

    def _look(self, time_s: float) -> Vector:
        assert self.world is not None, "it was begun"
        world = self.world
        every = np.stack([world.workers[n].params for n in world.live or range(world.size)])
        mean = every.mean(axis=0)
        apart = math.sqrt(float(np.square(every.astype(np.float64) - mean).sum(axis=1).mean()))
        shown: Vector = mean if world.shown is None else world.shown
        counts = float(self.steps), float(self._seen), self._sent_bytes
        row = time_s, *world.learner.score(shown), apart, *counts
        if self._rows and self._rows[-1][0] == time_s:
            self._rows.pop()
        self._rows.append(row)
        return shown
