"""The state of a pool at a moment, and how it goes on to the next event: a pure function, as the exact search tries
several ways from the same state. At an event jobs end first, then hosts change, and then jobs come.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias, final

from alpa_dejavu.playground.jobs._workload import Pool, Workload

Places: TypeAlias = tuple[tuple[int, int], ...]
"""Indices of hosts, each with a number of devices."""
_ROUNDING = 1e-9


@final
@dataclasses.dataclass(frozen=True)
class Allotment:
    """A job's part of the pool: places, and all its cores and memory, as much beside each of its devices."""

    places: Places
    cores: float
    memory_bytes: float

    @property
    def devices(self) -> int:
        return num_devices(self.places)

    def on_hosts(self) -> list[tuple[int, tuple[float, float, float]]]:
        """Returns for each of its hosts the devices, cores and bytes of memory that it has there."""
        devices = self.devices
        return [
            (host, (count, self.cores * count / devices, self.memory_bytes * count / devices))
            for host, count in self.places
        ]


def num_devices(places: Places) -> int:
    """Returns how many devices places have."""
    return sum(count for _, count in places)


@final
@dataclasses.dataclass(frozen=True)
class PoolDecision:
    """The part of each job that runs, by its number, and when to decide anew at the latest; at events it is anyway."""

    allotments: Mapping[int, Allotment]
    until_s: float = math.inf


@final
@dataclasses.dataclass(frozen=True)
class Running:
    """A job that has come and hasn't ended.

    Attributes:
        left, service: the steps that it still takes, and device seconds that it was given.
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
    """A moment: the jobs that are there, in the order in which they came, whether each host is, how many jobs have come
    and how many changes of hosts have been, and the jobs that have ended, with their times in seconds.
    """

    now_s: float
    jobs: tuple[Running, ...]
    present: tuple[bool, ...]
    come: int = 0
    changed: int = 0
    ended: tuple[tuple[Running, float], ...] = ()


def beginning(workload: Workload) -> State:
    """Returns the state when the first job has come."""
    return _with_changes(workload, State(0.0, (), (True,) * workload.pool.hosts), workload.jobs[0].arrival_s)


def step_s(workload: Workload, number: int, allotment: Allotment) -> float:
    """Returns the seconds of a job's step with a part of the pool."""
    return workload.jobs[number].curve.seconds(allotment.devices, allotment.cores, allotment.memory_bytes)


def advanced(workload: Workload, state: State, decision: PoolDecision) -> State | None:
    """Returns the state at the next event, where jobs run as is decided; None: jobs wait for ever."""
    begun = tuple(_begun(workload, state, job, decision.allotments.get(job.number)) for job in state.jobs)
    ends_s = [
        math.inf if job.allotment is None
        else max(job.ready_s, state.now_s) + job.left * step_s(workload, job.number, job.allotment)
        for job in begun
    ]  # fmt: skip
    coming, changing = workload.jobs[state.come : state.come + 1], workload.changes[state.changed : state.changed + 1]
    outer_s = (*(job.arrival_s for job in coming), *(change.at_s for change in changing))
    next_s = min([*ends_s, decision.until_s, *outer_s])
    if next_s == math.inf:
        return None
    progressed = [_progressed(workload, job, state.now_s, next_s) for job in begun]
    jobs = tuple(job for job, end_s in zip(progressed, ends_s, strict=True) if end_s > next_s)
    ended = tuple((job, next_s) for job, end_s in zip(progressed, ends_s, strict=True) if end_s <= next_s)
    after = dataclasses.replace(state, jobs=jobs, ended=(*state.ended, *ended))
    return _with_changes(workload, after, next_s)


def check_decision(workload: Workload, state: State, decision: PoolDecision) -> None:
    """Raises ValueError where a policy gives a job what there isn't, or more than it may have."""
    pool, used = workload.pool, [[0.0, 0.0, 0.0] for _ in state.present]
    present = {job.number for job in state.jobs}
    for number, part in decision.allotments.items():
        if number not in present or part.devices not in workload.sizes(number):
            raise ValueError(
                f"job {workload.jobs[number].name}: the policy gives it {part.devices} devices, but must give one of "
                f"{workload.sizes(number)} to a job that is there; mend the policy"
            )
        for host, amounts in part.on_hosts():
            used[host] = [before + amount for before, amount in zip(used[host], amounts, strict=True)]
    for host, total in enumerate(used):
        limits = (pool.devices, pool.cores, pool.memory_bytes) if state.present[host] else (0, 0, 0)
        if any(amount > limit * (1 + _ROUNDING) for amount, limit in zip(total, limits, strict=True)):
            raise ValueError(f"host {host}: the policy gives away {total} devices, cores and bytes, but must give at "
                             f"most {limits}; mend the policy")  # fmt: skip
    if decision.until_s <= state.now_s:
        raise ValueError(f"until_s is {decision.until_s}, but must be after {state.now_s}; mend the policy")


def _begun(workload: Workload, state: State, job: Running, part: Allotment | None) -> Running:
    """Returns a job with its new part; other devices cost it a restart once it has made steps."""
    before = None if job.allotment is None else job.allotment.places
    if part is None or part.places == before:
        return dataclasses.replace(job, allotment=part)
    fresh = job.service == 0
    return dataclasses.replace(job, allotment=part, ready_s=state.now_s + (0.0 if fresh else workload.restart_s))


def _progressed(workload: Workload, job: Running, from_s: float, to_s: float) -> Running:
    if job.allotment is None:
        return job
    after = dataclasses.replace(job, service=job.service + job.allotment.devices * (to_s - from_s))
    goes_s, each_s = max(job.ready_s, from_s), step_s(workload, job.number, job.allotment)
    if goes_s >= to_s or each_s == math.inf:
        return after
    # What rounding would take from a job that hasn't ended yet is left to it.
    left = max(job.left - (to_s - goes_s) / each_s, job.left * _ROUNDING * _ROUNDING)
    starved_s = max(job.starved_s, goes_s - job.still_s)
    return dataclasses.replace(after, left=left, first_s=min(job.first_s, goes_s), still_s=to_s, starved_s=starved_s)


def _with_changes(workload: Workload, state: State, now_s: float) -> State:
    """Returns the state after all that comes from outside by a time."""
    jobs, present, changed, come = list(state.jobs), list(state.present), state.changed, state.come
    while changed < len(workload.changes) and workload.changes[changed].at_s <= now_s:
        change = workload.changes[changed]
        present[change.host] = change.present
        if not change.present:
            jobs = [_lost(workload, running, change.host) for running in jobs]
        changed += 1
    while come < len(workload.jobs) and workload.jobs[come].arrival_s <= now_s:
        job = workload.jobs[come]
        jobs.append(Running(come, job.steps, job.arrival_s))
        come += 1
    return State(now_s, tuple(jobs), tuple(present), come, changed, state.ended)


def _lost(workload: Workload, running: Running, host: int) -> Running:
    """Returns a job after the loss of a host: back at its checkpoint, and without a part, if it ran there."""
    if running.allotment is None or all(place != host for place, _ in running.allotment.places):
        return running
    job, left = workload.jobs[running.number], running.left
    if job.checkpoint_steps:
        left = job.steps - math.floor((job.steps - left) / job.checkpoint_steps) * job.checkpoint_steps
    return dataclasses.replace(running, left=left, allotment=None)


def placed(pool: Pool, state: State, sizes: Mapping[int, int]) -> dict[int, Places]:
    """Returns the places of jobs by their numbers of devices: those that they had, where that goes; else those of all
    anew. A job for which there is no room, which the first ones get, is left out.
    """
    had = {number: places for number, places in kept_places(state).items() if sizes.get(number) == num_devices(places)}
    places = placed_with(pool, state.present, sizes, had)
    return places if len(places) == len(sizes) else placed_with(pool, state.present, sizes, {})


def kept_places(state: State) -> dict[int, Places]:
    """Returns the places of jobs that run, by number."""
    return {job.number: job.allotment.places for job in state.jobs if job.allotment is not None}


def placed_with(pool: Pool, hosts_there: Sequence[bool], sizes: Mapping[int, int], had: Mapping[int, Places]
                ) -> dict[int, Places]:  # fmt: skip
    """Returns the places that jobs have, and those of others beside them: the one with most devices first, each on the
    host that it fills most. One for which there is no room is left out.
    """
    free = [pool.devices if present else 0 for present in hosts_there]
    for places in had.values():
        for host, count in places:
            free[host] -= count
    all_places = dict(had)
    for number in sorted((number for number in sizes if number not in had), key=lambda number: -sizes[number]):
        size = sizes[number]
        if size > pool.devices:
            whole = [host for host, count in enumerate(free) if count == pool.devices][: size // pool.devices]
            places = tuple((host, pool.devices) for host in whole)
        else:
            places = tuple((host, size) for _, host in sorted((c, h) for h, c in enumerate(free) if c >= size)[:1])
        if num_devices(places) == size:
            all_places[number] = places
            for host, count in places:
                free[host] -= count
    return all_places
