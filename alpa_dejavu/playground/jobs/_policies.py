"""Scheduling policies: who runs now, with how much of the pool."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import final

from alpa_dejavu.playground.jobs._placement import kept_places, placed, placed_beside
from alpa_dejavu.playground.jobs._state import Allotment, Decision, Places, State
from alpa_dejavu.playground.jobs._workload import Workload
from alpa_dejavu.problem import checks

__all__ = ["EqualShares", "Fifo", "Policy", "in_proportion"]


class Policy(abc.ABC):
    """A rule by which a cluster's hosts, cores and memory are allotted to jobs."""

    @abc.abstractmethod
    def allot(self, workload: Workload, state: State) -> Decision:
        """Returns the part of each job that runs from a state on; it is asked anew at each event.

        Args:
            workload: the pool, and the jobs; only `ExactSearch` looks at those that haven't come yet.
            state: the jobs that are there, and the hosts.
        """


@final
@dataclasses.dataclass(frozen=True)
class Fifo(Policy):
    """Jobs run in the order in which they come, each with the devices that it asks for until it ends; nobody overtakes.
    Cores and memory are in proportion to devices.
    """

    def allot(self, workload: Workload, state: State) -> Decision:
        """Goes on with all that run, and starts the next ones while there is room."""
        places = kept_places(state)
        for one in state.jobs:
            if one.number not in places:
                asked = {one.number: workload.sizes(one.number)[-1]}
                places = placed_beside(workload.pool, state.there, asked, places)
                if one.number not in places:
                    break
        return Decision(in_proportion(workload, places))


@final
@dataclasses.dataclass(frozen=True)
class EqualShares(Policy):
    """All jobs have as many devices as goes, none more than it asks for, and cores and memory in proportion to these.
    Where there are more jobs than devices, those that were given the least device seconds run for a round.

    Attributes:
        round_s: seconds of a round.
    """

    round_s: float = 300.0

    def __post_init__(self) -> None:
        checks.positive("equal shares", "round_s", self.round_s)

    def allot(self, workload: Workload, state: State) -> Decision:
        """Gives each job its least devices, and raises those of the smallest while devices are left."""
        places = placed(workload.pool, state, _equal_sizes(workload, state))
        waits = 0 < len(places) < len(state.jobs)
        return Decision(in_proportion(workload, places), state.now_s + self.round_s if waits else math.inf)


def in_proportion(workload: Workload, places: Mapping[int, Places]) -> dict[int, Allotment]:
    """Returns parts whose cores and memory are those of a host in proportion to devices."""
    pool, parts = workload.pool, {}
    for number, part in places.items():
        share = sum(count for _, count in part) / pool.devices
        parts[number] = Allotment(part, pool.cores * share, pool.memory_bytes * share)
    return parts


def _equal_sizes(workload: Workload, state: State) -> dict[int, int]:
    order = sorted(state.jobs, key=lambda one: (one.service, one.number))
    left, level = workload.pool.devices * sum(state.there), dict[int, int]()
    for one in order:
        least = workload.sizes(one.number)[0]
        if least <= left:
            level[one.number] = 0
            left -= least
    rising = list(level)
    while rising:
        number = min(rising, key=lambda number: workload.sizes(number)[level[number]])
        sizes = workload.sizes(number)
        more = sizes[level[number] + 1] - sizes[level[number]] if level[number] + 1 < len(sizes) else math.inf
        if more <= left:
            level[number] += 1
            left -= int(more)
        else:
            rising.remove(number)
    return {number: workload.sizes(number)[place] for number, place in level.items()}
