"""The events of real workers: told by their processes, and told to a recorder afterwards, in the order of the clock."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, final

import numpy as np

from alpa_dejavu.playground._gradient import Gradient
from alpa_dejavu.playground._learner import Learner
from alpa_dejavu.playground._queue import Message
from alpa_dejavu.playground._recorder import Recorder
from alpa_dejavu.playground.history import COMPUTING, History
from alpa_dejavu.playground.job import Job, Until

__all__ = ["LOST", "PARAMS", "SHOWN", "Entry", "Log", "Told", "replayed"]

Entry: TypeAlias = tuple[str, tuple[Any, ...]]
"""The name of a method of a recorder or of a timeline, or one of those below, and its arguments."""
Told: TypeAlias = tuple[float, int, list[Entry]]
"""A moment, the worker that it is of, and what happened then."""
PARAMS, SHOWN, LOST = "params", "shown", "lost"
"""A worker has other parameters; the history is told of others; a worker is lost."""
_NONE = np.zeros(0, np.float32)


@final
class Log:
    """A recorder and a timeline of one worker that counts nothing: each call of a method is an event that is told.

    Args:
        tell: takes a moment and its events.
    """

    def __init__(self, tell: Callable[[float, list[Entry]], None]) -> None:
        self._tell, self._entries, self._numbers = tell, list[Entry](), itertools.count()
        self.timeline = self

    def __getattr__(self, name: str) -> Callable[..., None]:
        return functools.partial(self.add, name)

    def add(self, name: str, *arguments: Any) -> None:
        """Adds an event; who counts doesn't look at gradients' values and messages' payloads, which are left out."""
        self._entries.append((name, tuple(map(_bare, arguments))))

    def begin(self, *interval: Any) -> int:
        """Returns the number of a new interval of the worker's time, for `finish`."""
        number = next(self._numbers)
        self.add("begin", number, *interval)
        return number

    def tell(self, now_s: float) -> None:
        """Hands on the events of a moment, if there are any."""
        if self._entries:
            self._tell(now_s, [*self._entries])
            self._entries.clear()


def _bare(value: Any) -> Any:
    if isinstance(value, Message):
        return dataclasses.replace(value, payload=None)
    if not isinstance(value, Gradient):
        return value
    bare = Gradient(None, value.worker, value.step, value.version, _NONE, value.rows)
    bare.found = _NONE
    return bare


def replayed(told: Iterable[Told], end: str, job: Job, learner: Learner, until: Until, workers: int, looks: int,
             intervals: int) -> History:  # fmt: skip
    """Returns the history of a real run.

    Args:
        told: what happened, in any order.
        end: why it ended.
        job: the job.
        learner: computes the losses, of the same job and seed.
        until: when it was to end.
        workers: the number of workers.
        looks: at how many moments the model is looked at.
        intervals: how many intervals of workers' time are kept.
    """
    recorder = Recorder(job, until, looks, workers, intervals)
    world = _Replayed(learner, recorder, workers)
    recorder.world = world
    for time_s, worker, entries in sorted(told, key=lambda moment: moment[0]):
        recorder.passing(time_s)
        world.now_s = time_s
        for entry in entries:
            world.happened(worker, entry)
        recorder.happened(time_s)
    return recorder.history(end)


@dataclasses.dataclass
class _Model:
    """A worker's parameters."""

    params: Any


@final
class _Replayed:
    """All workers at a moment of a run that is over."""

    def __init__(self, learner: Learner, recorder: Recorder, workers: int) -> None:
        self.size, self.learner, self._recorder = workers, learner, recorder
        self.live, self.now_s, self.shown = tuple(range(workers)), 0.0, None  # type: tuple[int, ...], float, Any
        self.workers: Any = {number: _Model(learner.start(number)) for number in range(workers)}
        self._since: dict[int, float] = {}
        self._intervals: dict[tuple[int, int], Any] = {}

    def computing_s(self) -> list[float]:
        """Returns for how many seconds each worker has computed gradients that aren't there yet."""
        return [self.now_s - self._since.get(number, self.now_s) for number in range(self.size)]

    def happened(self, worker: int, entry: Entry) -> None:
        """Changes the state, or tells the recorder."""
        name, given = entry
        timeline = self._recorder.timeline
        if name == PARAMS:
            self.workers[worker].params = given[0]
        elif name == SHOWN:
            self.shown = given[0]
        elif name == LOST:
            self._lose(worker)
        elif name == "begin":
            number, *interval = given
            self._intervals[worker, number] = timeline.begin(*interval)
            if interval[1] == COMPUTING:
                self._since[worker] = self.now_s
        elif name == "finish":
            timeline.finish(self._intervals[worker, given[0]], given[1])
        elif name == "finish_all":
            timeline.finish_all(*given)
        else:
            if name in ("computed", "cancelled"):
                self._since.pop(worker, None)
            getattr(self._recorder, name)(*given)

    def _lose(self, worker: int) -> None:
        since_s = self._since.pop(worker, None)
        if since_s is not None:
            self._recorder.cancelled(worker, self.now_s - since_s)
        self._recorder.timeline.lose(worker, self.now_s)
        self.live = tuple(number for number in self.live if number != worker)
