"""Scheduling policies, which say who runs now with how much of the pool, and the run of jobs under one."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu.playground.jobs._state import (
    Allotment,
    Places,
    PoolDecision,
    State,
    advanced,
    beginning,
    check_decision,
    kept_places,
    num_devices,
    placed,
    placed_with,
    step_s,
)
from alpa_dejavu.playground.jobs._workload import Pool, Workload
from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from jaxtyping import Float


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """The completion of each of J jobs, and how long jobs waited.

    Attributes:
        completion_s: seconds from a job's arrival to its end; infinity: it never ended.
        first_s: seconds from a job's arrival to its first step; infinity: it never ran.
        starved_s: the longest time in which a job that was there had no devices, or started again.
    """

    completion_s: Float[np.ndarray, " J"]
    first_s: Float[np.ndarray, " J"]
    starved_s: Float[np.ndarray, " J"]
    device_s: Float[np.ndarray, " J"]
    end_s: float

    @property
    def mean_s(self) -> float:
        """Returns the mean completion time in seconds; infinity where a job never ended."""
        return float(self.completion_s.mean())

    @property
    def high_s(self) -> float:
        """Returns the seconds that 95 % of the completion times don't exceed."""
        return float(np.quantile(self.completion_s, 0.95, method="inverted_cdf"))


def schedule(workload: Workload, policy: Policy) -> Outcome:
    """Returns what comes of jobs under a policy; the same jobs and policy give the same to the bit.

    Raises:
        ValueError: the policy gives away what there isn't.
    """
    state = beginning(workload)
    after: State | None = state
    while after is not None and len(after.ended) < len(workload.jobs):
        state = after
        decision = policy.allot(workload, state)
        check_decision(workload, state, decision)
        after = advanced(workload, state, decision)
    state = state if after is None else after
    completion_s, first_s, starved_s, device_s = (np.full(len(workload.jobs), np.inf) for _ in range(4))
    for job, end_s in [*state.ended, *((job, np.inf) for job in state.jobs)]:
        arrival_s = workload.jobs[job.number].arrival_s
        completion_s[job.number], first_s[job.number] = end_s - arrival_s, job.first_s - arrival_s
        starved_s[job.number], device_s[job.number] = max(job.starved_s, end_s - job.still_s), job.service
    return Outcome(completion_s, first_s, starved_s, device_s, state.now_s)


class Policy(abc.ABC):
    """A rule by which a cluster's hosts, cores and memory are allotted to jobs."""

    @abc.abstractmethod
    def allot(self, workload: Workload, state: State) -> PoolDecision:
        """Returns the part of each job that runs from a state on; it is asked anew at each event. Only `ExactSearch`
        looks at jobs of the workload that haven't come yet.
        """


@final
@dataclasses.dataclass(frozen=True)
class Fifo(Policy):
    """Jobs run in the order in which they come, each with the devices that it asks for until it ends; nobody overtakes.
    Cores and memory are in proportion to devices.
    """

    def allot(self, workload: Workload, state: State) -> PoolDecision:
        places = kept_places(state)
        for job in state.jobs:
            if job.number not in places:
                asked = {job.number: workload.sizes(job.number)[-1]}
                places = placed_with(workload.pool, state.present, asked, places)
                if job.number not in places:
                    break
        return PoolDecision(in_proportion(workload, places))


@final
@dataclasses.dataclass(frozen=True)
class EqualShares(Policy):
    """All jobs have as many devices as goes, none more than it asks for, and cores and memory in proportion to these.
    Where there are more jobs than devices, those that were given the least device seconds run for a round.
    """

    round_s: float = 300.0

    def __post_init__(self) -> None:
        checks.positive("equal shares", "round_s", self.round_s)

    def allot(self, workload: Workload, state: State) -> PoolDecision:
        places = placed(workload.pool, state, _equal_sizes(workload, state))
        waits = 0 < len(places) < len(state.jobs)
        return PoolDecision(in_proportion(workload, places), state.now_s + self.round_s if waits else math.inf)


def in_proportion(workload: Workload, places: Mapping[int, Places]) -> dict[int, Allotment]:
    """Returns parts whose cores and memory are those of a host in proportion to devices."""
    pool, parts = workload.pool, {}
    for number, part in places.items():
        share = num_devices(part) / pool.devices
        parts[number] = Allotment(part, pool.cores * share, pool.memory_bytes * share)
    return parts


def _equal_sizes(workload: Workload, state: State) -> dict[int, int]:
    left, sizes = workload.pool.devices * sum(state.present), dict[int, int]()
    for job in sorted(state.jobs, key=lambda job: (job.service, job.number)):
        least = workload.sizes(job.number)[0]
        if least <= left:
            sizes[job.number] = least
            left -= least
    rising = list(sizes)
    while rising:
        number = min(rising, key=sizes.__getitem__)
        larger = next((size for size in workload.sizes(number) if size > sizes[number]), None)
        if larger is not None and larger - sizes[number] <= left:
            left -= larger - sizes[number]
            sizes[number] = larger
        else:
            rising.remove(number)
    return sizes


@final
@dataclasses.dataclass(frozen=True)
class Synergy(Policy):
    """Devices go by equal shares, cores and memory to the jobs whose steps they shorten most (Synergy). Each job first
    keeps what the speed of its equal share needs, so that no job's step is longer than with that.

    References:
        Mohan, Phanishayee, Kulkarni and Chidambaram, Looking Beyond GPUs for DNN Scheduling on Multi-Tenant Clusters
        (Synergy), OSDI 2022.
    """

    round_s: float = 300.0

    def __post_init__(self) -> None:
        checks.positive("sensitivity", "round_s", self.round_s)

    def allot(self, workload: Workload, state: State) -> PoolDecision:
        equal = EqualShares(self.round_s).allot(workload, state)
        floor_s = {number: step_s(workload, number, part) for number, part in equal.allotments.items()}
        order = sorted(floor_s, key=lambda number: (-_gain(workload, number, equal.allotments[number]), number))
        parts = by_need(workload, {number: equal.allotments[number].places for number in order}, floor_s)
        return dataclasses.replace(equal, allotments=parts)


def by_need(workload: Workload, places: Mapping[int, Places], floor_s: Mapping[int, float]) -> dict[int, Allotment]:
    """Returns parts with the places given: each has what its slowest allowed step needs, whose seconds together must be
    feasible, and then in turn, the first ones first, what shortens its step as far as there is something left.
    """
    curves = {number: workload.jobs[number].curve for number in places}
    parts = {number: Allotment(part, *curves[number].needs(floor_s[number])) for number, part in places.items()}
    left = _Left(workload.pool)
    for part in parts.values():
        left.take(part)
    for number, part in parts.items():
        left.take(part, -1)
        # Steps per second: the least is 0 where a step may take for ever.
        low, high = 1 / floor_s[number], 1 / curves[number].compute_s[part.devices]
        best = Allotment(part.places, *curves[number].needs(1 / high))
        if left.has(best):
            parts[number] = best
        else:
            for _ in range(40):
                tried = Allotment(part.places, *curves[number].needs(2 / (low + high)))
                if left.has(tried):
                    parts[number], low = tried, (low + high) / 2
                else:
                    high = (low + high) / 2
        left.take(parts[number])
    return parts


def _gain(workload: Workload, number: int, equal: Allotment) -> float:
    """Returns how much faster a job would be with all that it needs, for each further share of a host."""
    pool, curve = workload.pool, workload.jobs[number].curve
    now_s, best_s = step_s(workload, number, equal), curve.compute_s[equal.devices]
    before, after = curve.needs(now_s), curve.needs(best_s)
    more = max((b - a) / most for a, b, most in zip(before, after, (pool.cores, pool.memory_bytes), strict=True))
    return (now_s / best_s - 1) / more if more > 0 else 0.0


@final
class _Left:
    """Cores and bytes of memory of each host that nobody has."""

    def __init__(self, pool: Pool) -> None:
        self._free = [[pool.cores, pool.memory_bytes] for _ in range(pool.hosts)]

    def take(self, part: Allotment, sign: int = 1) -> None:
        for host, (_, *amounts) in part.on_hosts():
            self._free[host] = [free - sign * amount for free, amount in zip(self._free[host], amounts, strict=True)]

    def has(self, part: Allotment) -> bool:
        return all(
            amount <= free
            for host, (_, *amounts) in part.on_hosts() for amount, free in zip(amounts, self._free[host], strict=True)
        )  # fmt: skip
