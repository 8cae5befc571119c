"""Conditions that eventual convergence follows from, checked against a run while it runs.

A window is checked once, when it ends: a condition keeps until when it holds whatever happens, and looks again only
where that moment has passed.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import final

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from alpa_dejavu.playground._gradient import WorkerGradient
from alpa_dejavu.playground._recorder import Observer
from alpa_dejavu.playground._virtual_world import VirtualWorld
from alpa_dejavu.playground.job import Job
from alpa_dejavu.problem import checks

__all__ = ["CONDITIONS", "Condition", "Connected", "Observer", "SamplesSeen", "StalenessAtMost"]

_SLACK = 1e-9
"""The share of a window by which it may be longer: sums of seconds are rounded."""


class Condition(abc.ABC):
    """A condition that a run is checked against."""

    @abc.abstractmethod
    def observer(self, job: Job, world: VirtualWorld) -> Observer:
        """Returns what observes a run of a job; raises ValueError where the job can't be checked for it."""


@final
@dataclasses.dataclass(frozen=True)
class Connected(Condition):
    """Within every window of so many seconds each pair of surviving workers is connected, in both directions: in the
    graph of all messages with bytes that a worker took from another one in the window, there is a path.

    A pair counts in windows through which both were there; a worker that has had its steps counts no more. Messages of
    a worker that was lost meanwhile still connect others within the window.

    References:
        Tsitsiklis, Bertsekas and Athans, IEEE Transactions on Automatic Control 31(9), 1986 (partial asynchronism).
        Nedic and Ozdaglar, Distributed Subgradient Methods for Multi-Agent Optimization, IEEE Transactions on Automatic
        Control 54(1), 2009 (bounded intercommunication intervals).
    """

    window_s: float

    def __post_init__(self) -> None:
        checks.positive("connected", "window_s", self.window_s)

    def observer(self, job: Job, world: VirtualWorld) -> Observer:
        return _Connection(world, self.window_s)


@final
@dataclasses.dataclass(frozen=True)
class SamplesSeen(Condition):
    """Within every window a gradient of each training sample is applied.

    Attributes:
        window_s: the seconds of a window; infinity: none counts seconds.
        window_steps: the gradients of a window, of all workers together as `History.steps` counts them; None: none.
    """

    window_s: float = math.inf
    window_steps: int | None = None

    def __post_init__(self) -> None:
        if not self.window_s > 0:
            raise ValueError(f"samples seen: window_s is {self.window_s!r}, but must be above 0; give virtual seconds")
        if self.window_steps is not None:
            checks.count("samples seen", "window_steps", self.window_steps)
        elif math.isinf(self.window_s):
            raise ValueError("samples seen: window_s is inf and window_steps is None, but there must be a window; give "
                             "one of them")  # fmt: skip

    def observer(self, job: Job, world: VirtualWorld) -> Observer:
        if job.problem is None:
            raise ValueError("samples seen: the job's problem is None, but there must be samples; give it a problem")
        return _Samples(world, self, len(job.problem.train[0]))


@final
@dataclasses.dataclass(frozen=True)
class StalenessAtMost(Condition):
    """No gradient is applied to parameters that are more versions newer than those that it was computed at."""

    versions: int

    def __post_init__(self) -> None:
        checks.not_negative("staleness at most", "versions", self.versions)

    def observer(self, job: Job, world: VirtualWorld) -> Observer:
        return _Staleness(world, self.versions)


class _Window(Observer):
    """Checks windows of virtual seconds, each when it ends."""

    def __init__(self, world: VirtualWorld, window_s: float) -> None:
        self._world, self._window_s, self._until_s = world, window_s, window_s

    def passing(self, time_s: float) -> None:
        slack = self._window_s * _SLACK
        if self.violated_s is None and time_s > self._until_s + slack:
            self._until_s = self._satisfied_since() + self._window_s
            if time_s > self._until_s + slack:
                self.violated_s = self._until_s

    @abc.abstractmethod
    def _satisfied_since(self) -> float:
        """Returns the latest moment since when all has happened that a window must have."""


@final
class _Connection(_Window):
    def __init__(self, world: VirtualWorld, window_s: float) -> None:
        super().__init__(world, window_s)
        self._used_s: dict[tuple[int, int], float] = {}

    def used(self, sender: int, receiver: int) -> None:
        self._used_s[sender, receiver] = self._world.now_s

    def _satisfied_since(self) -> float:
        """Returns the latest moment since when messages connect all that were there before it."""
        now_s, came_s = self._world.now_s, np.array(self._world.came_s)
        since_s = now_s - self._window_s * (1 + 2 * _SLACK)
        self._used_s = {pair: used_s for pair, used_s in self._used_s.items() if used_s >= since_s}
        pairs = np.array([*self._used_s], np.int64).reshape(-1, 2)
        used_s = np.array([*self._used_s.values()])
        training = np.array([n for n in self._world.live if not self._world.finished(n)], np.int64)
        moments = np.unique(np.concatenate([used_s, came_s, [now_s]]))
        least, most = 0, len(moments) - 1  # nobody was there before the first
        while least < most:
            middle = (least + most + 1) // 2
            required = training[came_s[training] < moments[middle]]
            edges = pairs[used_s >= moments[middle]]
            graph = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(len(came_s), len(came_s)))
            _, parts = connected_components(graph, directed=True, connection="strong")
            if len(set(parts[required].tolist())) <= 1:
                least = middle
            else:
                most = middle - 1
        return float(moments[least])


@final
class _Samples(_Window):
    def __init__(self, world: VirtualWorld, condition: SamplesSeen, samples: int) -> None:
        super().__init__(world, condition.window_s)
        self._window = self._until = math.inf if condition.window_steps is None else condition.window_steps
        self._seen_s, self._seen = np.zeros(samples), np.zeros(samples, np.int64)

    def applied(self, gradient: WorkerGradient, staleness: int) -> None:
        step = self._world.recorder.steps + 1
        self._seen_s[gradient.rows], self._seen[gradient.rows] = self._world.now_s, step
        if self.violated_s is None and step >= self._until:
            self._until = int(self._seen.min()) + self._window
            if step >= self._until:
                self.violated_s = self._world.now_s

    def _satisfied_since(self) -> float:
        return float(self._seen_s.min())


@final
class _Staleness(Observer):
    def __init__(self, world: VirtualWorld, versions: int) -> None:
        self._world, self._versions = world, versions

    def applied(self, gradient: WorkerGradient, staleness: int) -> None:
        if staleness > self._versions and self.violated_s is None:
            self.violated_s = self._world.now_s


CONDITIONS: dict[str, type[Condition]] = {
    "connected": Connected,
    "samples-seen": SamplesSeen,
    "staleness-at-most": StalenessAtMost,
}
"""For each word of a scenario the condition, a frozen dataclass."""
