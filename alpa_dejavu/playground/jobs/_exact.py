"""The schedule of least mean completion time among many, found by branch and bound."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from typing import final

from alpa_dejavu.playground.jobs._policies import EqualShares, Fifo, Policy, Synergy, by_need, in_proportion
from alpa_dejavu.playground.jobs._state import Places, PoolDecision, State, advanced, placed, step_s
from alpa_dejavu.playground.jobs._workload import Workload
from alpa_dejavu.problem import checks


@final
@dataclasses.dataclass(frozen=True)
class ExactSearch(Policy):
    """A search for the least mean completion time tries all parts of a few jobs, and knows those that come later.

    It tries at each event all numbers of devices for all jobs, each with cores and memory in proportion to devices, and
    with cores and memory for what the jobs need in each order of them; and what the rivals would do. So it is never
    worse than they are. Parts change at events alone: a schedule that changes them in between may be better yet.
    """

    rivals: tuple[Policy, ...] = (Fifo(), EqualShares(), Synergy())
    most_states: int = 20_000

    def __post_init__(self) -> None:
        checks.count("exact search", "most_states", self.most_states)

    def allot(self, workload: Workload, state: State) -> PoolDecision:
        search = _DecisionSearch(workload, self.rivals, self.most_states)
        for rival in self.rivals:
            search.follow(state, rival)
        search.deepen(state, None)
        assert search.first is not None, "a rival goes on in some way"
        return search.first


@final
class _DecisionSearch:
    """A depth-first search; the best sum of completion times so far, and the decision that it begins with."""

    def __init__(self, workload: Workload, rivals: Sequence[Policy], most_states: int) -> None:
        self._workload, self._rivals, self._most = workload, rivals, most_states
        self.best_s, self.first, self._looked_at = math.inf, None, 0  # type: float, PoolDecision | None, int
        self._known: dict[Hashable, list[PoolDecision]] = {}
        self._least_s = [
            min(job.curve.compute_s[size] for size in workload.sizes(number))
            for number, job in enumerate(workload.jobs)
        ]  # fmt: skip
        pool, every = workload.pool, list(enumerate(workload.jobs))
        self._whole_s = (
            [min(size * job.curve.compute_s[size] for size in workload.sizes(number)) / pool.devices / pool.hosts
             for number, job in every],
            [job.curve.core_s / pool.cores / pool.hosts for _, job in every],
        )  # fmt: skip

    def follow(self, state: State, policy: Policy) -> None:
        """Goes on as a policy does, to the end."""
        first = policy.allot(self._workload, state)
        after = advanced(self._workload, state, first)
        while after is not None and len(after.ended) < len(self._workload.jobs):
            after = advanced(self._workload, after, policy.allot(self._workload, after))
        self._keep(after, first)

    def deepen(self, state: State, first: PoolDecision | None) -> None:
        """Tries all decisions from a state on; `first` is that by which the search came here."""
        self._looked_at += 1
        if self._looked_at > self._most:
            raise ValueError(f"workload: {len(self._workload.jobs)} jobs have more than {self._most} states to search, "
                             "but must have fewer; give fewer jobs or devices, or more most_states")  # fmt: skip
        if len(state.ended) == len(self._workload.jobs):
            self._keep(state, first)
            return
        decisions = [(decision, advanced(self._workload, state, decision)) for decision in self._decisions(state)]
        reached = [(self.least(after), decision, after) for decision, after in decisions if after is not None]
        for least_s, decision, after in sorted(reached, key=lambda way: way[0]):
            if least_s < self.best_s * (1 - 1e-12):
                self.deepen(after, decision if first is None else first)

    def least(self, state: State) -> float:
        """Returns a sum of times of ends that no schedule from a state on can be below: that of jobs which have the
        pool for themselves, or of those that come to all its devices, or cores, one after the other.
        """
        jobs = self._workload.jobs
        open_jobs = [(state.now_s, job.left, job.number) for job in state.jobs]
        open_jobs += [(jobs[n].arrival_s, jobs[n].steps, n) for n in range(state.come, len(jobs))]
        alone_s = math.fsum(from_s + left * self._least_s[n] for from_s, left, n in open_jobs)
        in_turn_s = [
            _shortest_first([(from_s, left * whole_s[n]) for from_s, left, n in open_jobs]) for whole_s in self._whole_s
        ]
        return math.fsum(end_s for _, end_s in state.ended) + max(alone_s, *in_turn_s)

    def _keep(self, state: State | None, first: PoolDecision | None) -> None:
        ended = state is not None and len(state.ended) == len(self._workload.jobs)
        sum_s = math.fsum(end_s for _, end_s in state.ended) if state is not None and ended else math.inf
        if self.first is None or sum_s < self.best_s * (1 - 1e-12):
            self.best_s, self.first = sum_s, first

    def _decisions(self, state: State) -> Iterator[PoolDecision]:
        yield from (rival.allot(self._workload, state) for rival in self._rivals)
        choices = [(0, *self._workload.sizes(job.number)) for job in state.jobs]
        most = self._workload.pool.devices * sum(state.present)
        for sizes in itertools.product(*choices):
            devices = {job.number: size for job, size in zip(state.jobs, sizes, strict=True) if size}
            if not state.jobs or (devices and sum(sizes) <= most):
                yield from self._divisions(state, devices)

    def _divisions(self, state: State, devices: dict[int, int]) -> list[PoolDecision]:
        """Returns ways to share cores and memory out, without those that are slower for all jobs than another."""
        places = placed(self._workload.pool, state, devices)
        key = tuple(sorted(places.items()))
        if len(places) < len(devices):
            return []
        if key not in self._known:
            self._known[key] = self._undominated(places)
        return self._known[key]

    def _undominated(self, places: dict[int, Places]) -> list[PoolDecision]:
        tried = [in_proportion(self._workload, places)]
        for order in itertools.permutations(places):
            endless = dict.fromkeys(order, math.inf)
            tried.append(by_need(self._workload, {number: places[number] for number in order}, endless))
        speeds = [tuple(1 / step_s(self._workload, number, part[number]) for number in places) for part in tried]
        return [
            PoolDecision(part) for n, part in enumerate(tried)
            if not any(
                (speeds[m] != speeds[n] or m < n) and all(a >= b for a, b in zip(speeds[m], speeds[n], strict=True))
                for m in range(len(tried)) if m != n
            )
        ]  # fmt: skip


def _shortest_first(jobs: Sequence[tuple[float, float]]) -> float:
    """Returns the sum of the times of ends on one machine, where the job with the least left always goes first: no
    other order has a smaller sum. A job is given by when it comes, and its seconds.

    References:
        Schrage, A Proof of the Optimality of the Shortest Remaining Processing Time Discipline, Operations Research
        16(3), 1968.
    """
    coming, waiting, now_s, sum_s = sorted(jobs), list[float](), 0.0, 0.0
    while coming or waiting:
        now_s = now_s if waiting else max(now_s, coming[0][0])
        while coming and coming[0][0] <= now_s:
            heapq.heappush(waiting, coming.pop(0)[1])
        left_s = heapq.heappop(waiting)
        if coming and now_s + left_s > coming[0][0]:
            heapq.heappush(waiting, left_s - (coming[0][0] - now_s))
            now_s = coming[0][0]
        else:
            now_s += left_s
            sum_s += now_s
    return sum_s
