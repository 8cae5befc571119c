"""Several jobs, the hosts that they share, and when hosts are lost and come back."""

from __future__ import annotations

import dataclasses
import math
from typing import final

from alpa_dejavu.playground.jobs._curve import StepCurve
from alpa_dejavu.problem import Cluster, checks

__all__ = ["ClusterJob", "HostChange", "Pool", "Workload"]


@final
@dataclasses.dataclass(frozen=True)
class ClusterJob:
    """A training job that comes to a cluster.

    Attributes:
        name: for people.
        arrival_s: when it comes.
        steps: how many steps it takes; a share of a step is one, too.
        devices: how many devices it asks for; it is never given more.
        curve: the seconds of a step.
        checkpoint_steps: a lost host takes it back to its last checkpoint, one after so many steps; 0: nothing is lost.
    """

    name: str
    arrival_s: float
    steps: float
    devices: int
    curve: StepCurve
    checkpoint_steps: float = 0.0

    def __post_init__(self) -> None:
        owner = f"job {self.name}"
        checks.not_negative(owner, "arrival_s", self.arrival_s)
        checks.positive(owner, "steps", self.steps)
        checks.count(owner, "devices", self.devices)
        checks.not_negative(owner, "checkpoint_steps", self.checkpoint_steps)
        if self.devices < self.curve.sizes[0]:
            raise ValueError(f"{owner}: devices is {self.devices}, but must be at least {self.curve.sizes[0]}, the "
                             "fewest of its curve; ask for more")  # fmt: skip


@final
@dataclasses.dataclass(frozen=True)
class Pool:
    """Equal hosts whose devices, cores and memory are shared out.

    Attributes:
        hosts: how many there are.
        devices, cores, memory_bytes: of each host.
    """

    hosts: int
    devices: int
    cores: float
    memory_bytes: float

    def __post_init__(self) -> None:
        checks.count("pool", "hosts", self.hosts)
        checks.count("pool", "devices", self.devices)
        checks.positive("pool", "cores", self.cores)
        checks.positive("pool", "memory_bytes", self.memory_bytes)

    @classmethod
    def of(cls, cluster: Cluster, cores: float, memory_bytes: float) -> Pool:
        """Returns the pool of a cluster's hosts, with the cores and the bytes of memory that each of them has.

        Raises:
            ValueError: hosts have different numbers of devices.
        """
        counts = {host.num_devices for host in cluster.hosts}
        if len(counts) > 1:
            raise ValueError(f"cluster {cluster.name}: hosts have {sorted(counts)} devices, but must have as many "
                             "each; take a part of the cluster")  # fmt: skip
        return cls(len(cluster.hosts), counts.pop(), cores, memory_bytes)

    def fits(self, size: int) -> bool:
        """Returns whether so many devices are a part of one host, or whole hosts."""
        return size <= self.devices or (size % self.devices == 0 and size <= self.devices * self.hosts)


@final
@dataclasses.dataclass(frozen=True)
class HostChange:
    """A host that is lost at a time, or comes back.

    Attributes:
        at_s: when.
        host: its index.
        there: whether it is there from then on.
    """

    at_s: float
    host: int
    there: bool


@final
@dataclasses.dataclass(frozen=True)
class Workload:
    """Jobs on a pool of hosts.

    Attributes:
        jobs: in the order in which they come.
        pool: the hosts.
        changes: of hosts, in the order of their times; all are there at the beginning.
        restart_s: seconds that a job loses when it goes on after a pause, or on other devices.
    """

    jobs: tuple[ClusterJob, ...]
    pool: Pool
    changes: tuple[HostChange, ...] = ()
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        checks.not_negative("workload", "restart_s", self.restart_s)
        if not self.jobs:
            raise ValueError("workload: jobs is empty, but must have a job; give one")
        for field, times in (("jobs", [job.arrival_s for job in self.jobs]),
                             ("changes", [change.at_s for change in self.changes])):  # fmt: skip
            if times != sorted(times) or not all(0 <= time < math.inf for time in times):
                raise ValueError(f"workload: {field} isn't in the order of its times from 0 on; sort it")
        for change in self.changes:
            if not 0 <= change.host < self.pool.hosts:
                raise ValueError(f"workload: a change is of host {change.host}, but must be of one of 0.."
                                 f"{self.pool.hosts - 1}; leave it out")  # fmt: skip
        for number, job in enumerate(self.jobs):
            if not self.sizes(number):
                raise ValueError(f"job {job.name}: its curve has {', '.join(map(str, job.curve.sizes))} devices, but "
                                 f"none of them is a part of a host of {self.pool.devices}, or of {self.pool.hosts} "
                                 "whole hosts; give a larger cluster")  # fmt: skip

    def sizes(self, number: int) -> tuple[int, ...]:
        """Returns the numbers of devices that a job may be given."""
        job = self.jobs[number]
        return tuple(size for size in job.curve.sizes if size <= job.devices and self.pool.fits(size))
