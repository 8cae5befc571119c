"""Cores and memory go from jobs that don't need them to those whose steps they shorten."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

from alpa_dejavu.playground.jobs._policies import EqualShares, Policy
from alpa_dejavu.playground.jobs._state import Allotment, Decision, Places, State, step_s
from alpa_dejavu.playground.jobs._workload import Pool, Workload
from alpa_dejavu.problem import checks

__all__ = ["Sensitivity", "by_need"]

_HALVINGS = 40


@final
@dataclasses.dataclass(frozen=True)
class Sensitivity(Policy):
    """Devices go by equal shares, cores and memory to the jobs whose steps they shorten most (Synergy). Each job first
    keeps what the speed of its equal share needs, so that no job's step is longer than with that.

    Attributes:
        round_s: seconds of a round, as those of `EqualShares`.

    References:
        Mohan, Phanishayee, Kulkarni and Chidambaram, Looking Beyond GPUs for DNN Scheduling on Multi-Tenant Clusters
        (Synergy), OSDI 2022.
    """

    round_s: float = 300.0

    def __post_init__(self) -> None:
        checks.positive("sensitivity", "round_s", self.round_s)

    def allot(self, workload: Workload, state: State) -> Decision:
        """Begins with equal shares, and moves cores and memory."""
        equal = EqualShares(self.round_s).allot(workload, state)
        floor_s = {number: step_s(workload, number, part) for number, part in equal.allotments.items()}
        order = sorted(floor_s, key=lambda number: (-_gain(workload, number, equal.allotments[number]), number))
        parts = by_need(workload, {number: equal.allotments[number].places for number in order}, floor_s)
        return dataclasses.replace(equal, allotments=parts)


def by_need(
    workload: Workload, places: Mapping[int, Places], floor_s: Mapping[int, float]
) -> dict[int, Allotment]:
    """Returns parts with the places given: each has what its slowest allowed step needs, and then in turn what shortens
    its step as far as there is something left.

    Args:
        workload: the pool, and the jobs.
        places: of each job; the first ones are helped first.
        floor_s: seconds that each job's step may take; together they must be feasible.
    """
    curves = {number: workload.jobs[number].curve for number in places}
    devices = {number: sum(count for _, count in part) for number, part in places.items()}
    left = _Left(workload.pool)
    parts = {}
    for number, part in places.items():
        parts[number] = Allotment(part, *curves[number].needs(floor_s[number]))
        left.take(parts[number])
    for number, part in places.items():
        left.take(parts[number], -1)
        # Steps per second: the least is 0 where a step may take for ever.
        low, high = 1 / floor_s[number], 1 / curves[number].compute_s[devices[number]]
        best = Allotment(part, *curves[number].needs(1 / high))
        if left.has(best):
            parts[number] = best
        else:
            for _ in range(_HALVINGS):
                tried = Allotment(part, *curves[number].needs(2 / (low + high)))
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
        for host, count in part.places:
            self._free[host][0] -= sign * part.cores * count / part.devices
            self._free[host][1] -= sign * part.memory_bytes * count / part.devices

    def has(self, part: Allotment) -> bool:
        return all(
            part.cores * count / part.devices <= self._free[host][0]
            and part.memory_bytes * count / part.devices <= self._free[host][1]
            for host, count in part.places
        )
