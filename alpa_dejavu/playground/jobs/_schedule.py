"""Runs jobs on a pool under a policy, in virtual seconds."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground.jobs._policies import Policy
from alpa_dejavu.playground.jobs._state import State, advanced, beginning, check_decision
from alpa_dejavu.playground.jobs._workload import Workload

Floats = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """The completion of each of J jobs, and how long jobs waited.

    Attributes:
        completion_s: seconds from a job's arrival to its end, shape (J,); infinity: it never ended.
        first_s: seconds from a job's arrival to its first step, shape (J,); infinity: it never ran.
        starved_s: the longest time in which a job that was there had no devices, or started again, shape (J,).
        device_s: device seconds that each job was given, shape (J,).
        end_s: when the last event was.
    """

    completion_s: Floats
    first_s: Floats
    starved_s: Floats
    device_s: Floats
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
    state, last = beginning(workload), False
    while not last and len(state.ended) < len(workload.jobs):
        decision = policy.allot(workload, state)
        check_decision(workload, state, decision)
        after = advanced(workload, state, decision)
        last, state = after is None, state if after is None else after
    return outcome(workload, state)


def outcome(workload: Workload, state: State) -> Outcome:
    """Returns the figures of all jobs, those that are still there and wait for ever among them."""
    completion_s, first_s, starved_s, device_s = (np.full(len(workload.jobs), np.inf) for _ in range(4))
    for job, end_s in [*state.ended, *((job, np.inf) for job in state.jobs)]:
        arrival_s = workload.jobs[job.number].arrival_s
        completion_s[job.number], first_s[job.number] = end_s - arrival_s, job.first_s - arrival_s
        starved_s[job.number], device_s[job.number] = max(job.starved_s, end_s - job.still_s), job.service
    return Outcome(completion_s, first_s, starved_s, device_s, state.now_s)
