"""Several training jobs on one cluster: devices, cores and memory are allotted by a policy, in virtual seconds.

In: jobs, each with its arrival, its steps and the seconds of a step by devices, cores and memory; hosts, which may be
lost and come back; a policy.
Out: an `Outcome`: the completion time of each job, and how long jobs waited. Jobs and losses may come from CSV files in
the published columns of Alibaba's cluster traces.
"""

from __future__ import annotations

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.playground.jobs._exact import ExactSearch
from alpa_dejavu.playground.jobs._policies import EqualShares, Fifo, Outcome, Policy, Synergy, schedule
from alpa_dejavu.playground.jobs._workload import ClusterJob, HostChange, Pool, StepCurve, Workload, planned_curve

__all__ = [
    "POLICIES", "ClusterJob", "HostChange", "Outcome", "Policy", "Pool", "StepCurve", "Workload", "planned_curve",
    "policy", "schedule",
]  # fmt: skip

POLICIES: dict[str, type[Policy]] = {
    "fifo": Fifo, "equal-shares": EqualShares, "sensitivity": Synergy, "exact": ExactSearch,
}  # fmt: skip


def policy(choice: str | Policy) -> Policy:
    """Returns the policy of a name of `POLICIES`, with the settings that it has by itself, or the given one.

    >>> policy("equal-shares")
    EqualShares(round_s=300.0)
    """
    return resolve("policy", choice, POLICIES, Policy)  # type: ignore[type-abstract]
