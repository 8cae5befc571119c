"""Any few workers that are ready take the mean of their parameters, in groups that join all workers in time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import final

import numpy as np

from alpa_dejavu.playground._data import check_above_zero
from alpa_dejavu.playground._world import Exchange, Program, Worker
from alpa_dejavu.playground.exchanges._all_reduce import all_reduce
from alpa_dejavu.playground.exchanges._server import serves
from alpa_dejavu.problem import checks


@final
@dataclasses.dataclass(frozen=True)
class PartialReduce(Exchange):
    """Any few workers that are ready average their parameters, so that nobody waits for the slowest (partial reduce).
    Each worker updates by its gradient and says that it is ready; a coordinator has the first few that are ready
    average around a ring.

    A worker whose parameters have k updates fewer than the newest of its group has a weight of `decay` to the power k,
    over the sum of all weights; then it counts as up to date. In every `window` groups, one after the other, the
    workers are connected: who shared a group is, directly or through others. Where the first that are ready would
    leave too many parts for the groups that remain, the coordinator takes some of other parts, and waits for them.
    A group whose member crashes stalls.

    Attributes:
        ready: how many workers are a group; fewer are where not so many are training any more.
        window: the groups; at least 2 ceil((n - 1) / (ready - 1)) - 1 for n workers. None: about twice that.
        decay: the weight of parameters for each update that they are behind; 1 gives equal weights.

    References:
        Miao and others, Heterogeneity-Aware Distributed Machine Learning Training via Partial Reduce, SIGMOD 2021: the
        groups; both the weights' formula and the window's are our own.
    """

    ready: int = 2
    window: int | None = None
    decay: float = 0.8
    coordinator: int = 0

    def __post_init__(self) -> None:
        if not self.ready >= 2:
            raise ValueError(f"partial reduce: ready is {self.ready}, but must be at least 2; one has nobody to "
                             "average with")  # fmt: skip
        check_above_zero("partial reduce", "decay", self.decay, "1 weighs all alike")
        checks.count("partial reduce", "window", 1 if self.window is None else self.window)

    def run(self, worker: Worker) -> Program:
        block = self._block(worker.world.size)
        if serves(worker, self.coordinator):
            worker.spawn(self._coordinate(worker, block))
        return self._train(worker)

    def _train(self, worker: Worker) -> Program:
        while True:
            gradient = yield worker.compute()
            worker.update(gradient.values, gradient)
            worker.send(self.coordinator, "ready", (worker.version, worker.finished))
            (message,) = yield worker.receive("group")
            number, versions = message.payload
            newest = max(versions.values())
            weights = {member: self.decay ** (newest - version) for member, version in versions.items()}
            share = np.float32(weights[worker.number] * len(weights) / sum(weights.values()))
            total = yield from all_reduce(worker, ("group", number), share * worker.params, "ring", sorted(versions))
            worker.adopt(total, newest)

    def _coordinate(self, worker: Worker, block: int) -> Program:
        world, waiting, leaving = worker.world, dict[int, int](), set[int]()
        parts, number, last = list(range(world.size)), 0, set[int]()

        def members() -> list[int]:
            for lost in [n for n in waiting if not world.present[n]]:
                del waiting[lost]
            return self._group([*waiting], set(world.live) - leaving, parts, block - number % block)

        while True:
            messages = yield worker.receive("ready", lambda: 0 if members() else 1)
            for message in messages:
                waiting[message.sender], finished = message.payload
                last |= {message.sender} if finished else set()
            while group := members():
                versions = {member: waiting.pop(member) for member in group}
                for member in group:
                    worker.send(member, "group", (number, versions))
                joined = {parts[member] for member in group}
                parts = [min(joined) if part in joined else part for part in parts]
                leaving |= last.intersection(group)
                number += 1
                if number % block == 0:
                    parts = list(range(world.size))

    def _group(self, waiting: list[int], training: set[int], parts: list[int], left: int) -> list[int]:
        """Returns who of those that wait, in their order, are the next group; empty where others must come first.

        Args:
            training: who will still be in a group, those that wait among them.
            parts: for each worker a number that those who are connected share.
            left: how many groups, with this one, may still be formed until all must be connected.
        """
        size = min(self.ready, len(training))
        if not 0 < size <= len(waiting):
            return []
        first = {parts[n]: n for n in reversed(waiting)}
        others = [n for n in waiting if n in first.values()] + [n for n in waiting if n not in first.values()]
        needed = _count(parts, training) - (left - 1) * (self.ready - 1)
        for group in (waiting[:size], others[:size]):
            if _count(parts, group) >= needed:
                return group
        return others[:size] if len(waiting) == len(training) else []

    def _block(self, size: int) -> int:
        """Returns in how many groups from a start on all are connected; any window has a whole such block."""
        least = max(-(-(size - 1) // (self.ready - 1)), 1)
        if self.ready > max(size, 2):
            raise ValueError(f"partial reduce: ready is {self.ready}, but must be at most the {size} workers; wait for "
                             "fewer")  # fmt: skip
        if self.window is None:
            return 2 * least
        if self.window < 2 * least - 1:
            raise ValueError(f"partial reduce: window is {self.window}, but must be at least {2 * least - 1} for "
                             f"{size} workers in groups of {self.ready}; give a longer one")  # fmt: skip
        return (self.window + 1) // 2


def _count(parts: list[int], members: Iterable[int]) -> int:
    return len({parts[n] for n in members})
