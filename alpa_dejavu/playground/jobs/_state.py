"""The state of a pool at a moment, and how it goes on from there to the next event: a pure function, as the exact
search tries several ways to go on from the same state.

At an event jobs end first, then hosts change, and then jobs come.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TypeAlias, final

from alpa_dejavu.playground.jobs._workload import Workload

__all__ = [
    "Allotment", "Decision", "Places", "Running", "State", "advanced", "beginning", "check_decision", "step_s",
]  # fmt: skip

Places: TypeAlias = "tuple[tuple[int, int], ...]"
"""Indices of hosts, each with a number of devices."""
_ROUNDING = 1e-9


@final
@dataclasses.dataclass(frozen=True)
class Allotment:
    """A job's part of the pool; cores and memory are as much beside each of its devices.

    Attributes:
        places: its hosts, each with how many of its devices.
        cores, memory_bytes: all together.
    """

    places: Places
    cores: float
    memory_bytes: float

    @property
    def devices(self) -> int:
        """Returns the number of devices."""
        return sum(count for _, count in self.places)


@final
@dataclasses.dataclass(frozen=True)
class Decision:
    """The part of each job that runs, by its number, and when to decide anew at the latest; at events it is anyway."""

    allotments: Mapping[int, Allotment]
    until_s: float = math.inf


@final
@dataclasses.dataclass(frozen=True)
class Running:
    """A job that has come and hasn't ended.

    Attributes:
        number: its index.
        left: steps that it still takes.
        service: device seconds that it was given.
        allotment: its part since the last event; None: it waited.
        ready_s: until then it starts again, and makes no steps.
        first_s: when it made its first step; infinity: it hasn't yet.
        still_s: since when it makes no steps, or the last event up to which it made some.
        starved_s: the longest time in which it made none.
    """

    number: int
    left: float
    still_s: float
    service: float = 0.0
    allotment: Allotment | None = None
    ready_s: float = 0.0
    first_s: float = math.inf
    starved_s: float = 0.0


@final
@dataclasses.dataclass(frozen=True)
class State:
    """A moment.

    Attributes:
        now_s: the time.
        jobs: those that are there, in the order in which they came.
        there: whether each host is.
        come, changed: how many jobs have come, and how many changes of hosts have been.
        ended: jobs that have ended, with their times in seconds.
    """

    now_s: float
    jobs: tuple[Running, ...]
    there: tuple[bool, ...]
    come: int = 0
    changed: int = 0
    ended: tuple[tuple[Running, float], ...] = ()


def beginning(workload: Workload) -> State:
    """Returns the state when the first job has come."""
    return _with_changes(workload, State(0.0, (), (True,) * workload.pool.hosts), workload.jobs[0].arrival_s)


def step_s(workload: Workload, number: int, allotment: Allotment) -> float:
    """Returns the seconds of a job's step with a part of the pool."""
    return workload.jobs[number].curve.seconds(allotment.devices, allotment.cores, allotment.memory_bytes)


def advanced(workload: Workload, state: State, decision: Decision) -> State | None:
    """Returns the state at the next event, where jobs run as is decided; None: jobs wait for ever."""
    begun = tuple(_begun(workload, state, one, decision.allotments.get(one.number)) for one in state.jobs)
    ends_s = [
        math.inf if one.allotment is None
        else max(one.ready_s, state.now_s) + one.left * step_s(workload, one.number, one.allotment)
        for one in begun
    ]  # fmt: skip
    next_s = min([*ends_s, decision.until_s, *_outer_events(workload, state)])
    if next_s == math.inf:
        return None
    progressed = [_progressed(workload, one, state.now_s, next_s) for one in begun]
    jobs = tuple(one for one, end_s in zip(progressed, ends_s, strict=True) if end_s > next_s)
    ended = tuple((one, next_s) for one, end_s in zip(progressed, ends_s, strict=True) if end_s <= next_s)
    after = dataclasses.replace(state, jobs=jobs, ended=(*state.ended, *ended))
    return _with_changes(workload, after, next_s)


def check_decision(workload: Workload, state: State, decision: Decision) -> None:
    """Raises ValueError where a policy gives a job what there isn't, or more than it may have."""
    pool, used = workload.pool, [[0.0, 0.0, 0.0] for _ in state.there]
    here = {one.number for one in state.jobs}
    for number, part in decision.allotments.items():
        if number not in here or part.devices not in workload.sizes(number):
            raise ValueError(
                f"job {workload.jobs[number].name}: the policy gives it {part.devices} devices, but must give one of "
                f"{workload.sizes(number)} to a job that is there; mend the policy"
            )
        for host, count in part.places:
            share = count / part.devices
            for n, amount in enumerate((count, part.cores * share, part.memory_bytes * share)):
                used[host][n] += amount
    for host, amounts in enumerate(used):
        limits = (pool.devices, pool.cores, pool.memory_bytes) if state.there[host] else (0, 0, 0)
        if any(amount > limit * (1 + _ROUNDING) for amount, limit in zip(amounts, limits, strict=True)):
            raise ValueError(f"host {host}: the policy gives away {amounts} devices, cores and bytes, but must give at "
                             f"most {limits}; mend the policy")  # fmt: skip
    if decision.until_s <= state.now_s:
        raise ValueError(f"until_s is {decision.until_s}, but must be after {state.now_s}; mend the policy")


def _outer_events(workload: Workload, state: State) -> list[float]:
    jobs, changes = workload.jobs[state.come : state.come + 1], workload.changes[state.changed : state.changed + 1]
    return [*(job.arrival_s for job in jobs), *(change.at_s for change in changes)]


def _begun(workload: Workload, state: State, one: Running, part: Allotment | None) -> Running:
    """Returns a job with its new part; other devices cost it a restart once it has made steps."""
    before = None if one.allotment is None else one.allotment.places
    if part is None or part.places == before:
        return dataclasses.replace(one, allotment=part)
    fresh = one.service == 0
    return dataclasses.replace(one, allotment=part, ready_s=state.now_s + (0.0 if fresh else workload.restart_s))


def _progressed(workload: Workload, one: Running, from_s: float, to_s: float) -> Running:
    if one.allotment is None:
        return one
    after = dataclasses.replace(one, service=one.service + one.allotment.devices * (to_s - from_s))
    goes_s, each_s = max(one.ready_s, from_s), step_s(workload, one.number, one.allotment)
    if goes_s >= to_s or each_s == math.inf:
        return after
    # What rounding would take from a job that hasn't ended yet is left to it.
    left = max(one.left - (to_s - goes_s) / each_s, one.left * _ROUNDING * _ROUNDING)
    starved_s = max(one.starved_s, goes_s - one.still_s)
    return dataclasses.replace(after, left=left, first_s=min(one.first_s, goes_s), still_s=to_s, starved_s=starved_s)


def _with_changes(workload: Workload, state: State, now_s: float) -> State:
    """Returns the state after all that comes from outside by a time."""
    jobs, there, changed, come = list(state.jobs), list(state.there), state.changed, state.come
    while changed < len(workload.changes) and workload.changes[changed].at_s <= now_s:
        change = workload.changes[changed]
        there[change.host] = change.there
        if not change.there:
            jobs = [_lost(workload, one, change.host) for one in jobs]
        changed += 1
    while come < len(workload.jobs) and workload.jobs[come].arrival_s <= now_s:
        job = workload.jobs[come]
        jobs.append(Running(come, job.steps, job.arrival_s))
        come += 1
    return State(now_s, tuple(jobs), tuple(there), come, changed, state.ended)


def _lost(workload: Workload, one: Running, host: int) -> Running:
    """Returns a job after the loss of a host: back at its checkpoint, and without a part, if it ran there."""
    if one.allotment is None or all(place != host for place, _ in one.allotment.places):
        return one
    job, left = workload.jobs[one.number], one.left
    if job.checkpoint_steps:
        left = job.steps - math.floor((job.steps - left) / job.checkpoint_steps) * job.checkpoint_steps
    return dataclasses.replace(one, left=left, allotment=None)
