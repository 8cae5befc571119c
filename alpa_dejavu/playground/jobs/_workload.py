"""Several jobs with their steps by devices, cores and memory, and the hosts that they share, lost ones among them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, final

from alpa_dejavu.problem import Cluster, NoPlanError, checks


@final
@dataclasses.dataclass(frozen=True)
class StepCurve:
    """The seconds of a step: the longest of computing, preparing samples on cores, and reading those from storage that
    memory doesn't keep, as all three go on at the same time.

    Attributes:
        compute_s: seconds of computing by the number of devices; numbers that make it no shorter are left out.
        core_s: seconds of one core that prepare a step's samples.
        data_bytes: memory that keeps all samples of the job.
        uncached_s: seconds of reading a step's samples where memory keeps none; it takes its share of them where memory
            keeps a share.

    References:
        Mohan, Phanishayee, Kulkarni and Chidambaram, Looking Beyond GPUs for DNN Scheduling on Multi-Tenant Clusters
        (Synergy), OSDI 2022.
    """

    compute_s: Mapping[int, float] = dataclasses.field(hash=False)
    core_s: float = 0.0
    data_bytes: float = 0.0
    uncached_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.compute_s:
            raise ValueError("step curve: compute_s is empty, but must have a number of devices; give one with seconds")
        for devices, seconds in self.compute_s.items():
            checks.count("step curve", "devices", devices)
            checks.positive("step curve", f"compute_s[{devices}]", seconds)
        checks.fields("step curve", self, "", "core_s data_bytes uncached_s")
        falling: dict[int, float] = {}
        for devices, seconds in sorted(self.compute_s.items()):
            if seconds < min(falling.values(), default=math.inf):
                falling[devices] = seconds
        object.__setattr__(self, "compute_s", falling)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Returns the numbers of devices, in rising order."""
        return tuple(self.compute_s)

    def seconds(self, devices: int, cores: float, memory_bytes: float) -> float:
        """Returns the seconds of a step; infinity where samples need a core and there is none."""
        prepare_s = self.core_s / cores if cores > 0 else math.inf if self.core_s else 0.0
        kept = min(memory_bytes / self.data_bytes, 1.0) if self.data_bytes else 1.0
        return max(self.compute_s[devices], prepare_s, self.uncached_s * (1 - kept))

    def needs(self, step_s: float) -> tuple[float, float]:
        """Returns the least cores and bytes of memory with which neither makes a step longer than so many seconds."""
        kept = 1 - step_s / self.uncached_s if self.uncached_s > step_s else 0.0
        return self.core_s / step_s, self.data_bytes * kept


def planned_curve(model: str, cluster: Cluster, batch: int, **more: Any) -> StepCurve:
    """Returns a curve whose seconds of computing are those of the planner's plans for parts of a cluster of like hosts:
    1, 2, 4, ... devices of a host, all of it, and 2, 4, ... whole hosts. A part that the model doesn't fit on is left
    out. `plan_model` takes the arguments.

    Raises:
        NoPlanError: the model fits on no part.
    """
    from alpa_dejavu.planning import plan_model

    host, compute_s, wrong = cluster.hosts[0], dict[int, float](), None  # type: Any, Any, NoPlanError | None
    parts = [(1, devices) for devices in _doubled(host.num_devices)]
    parts += [(hosts, host.num_devices) for hosts in _doubled(len(cluster.hosts))[1:]]
    for hosts, devices in parts:
        names = [part_host.name for part_host in cluster.hosts[:hosts]]
        part = Cluster.uniform(cluster.name, names, host.device, devices, cluster.links[0][0], cluster.links[0][-1])
        try:
            compute_s[hosts * devices] = plan_model(model, part, batch=batch, **more).plan.step_s
        except NoPlanError as error:
            wrong = error
    if not compute_s and wrong is not None:
        raise wrong
    return StepCurve(compute_s)


def _doubled(most: int) -> list[int]:
    """Returns 1, 2, 4, ... below the most, and the most."""
    return [2**n for n in range(most.bit_length()) if 2**n < most] + [most]


@final
@dataclasses.dataclass(frozen=True)
class ClusterJob:
    """A training job that comes to a cluster.

    Attributes:
        steps: how many steps it takes; a share of a step is one, too.
        devices: how many devices it asks for; it is never given more.
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
        checks.fields(owner, self, "steps", "arrival_s checkpoint_steps")
        checks.count(owner, "devices", self.devices)
        if self.devices < self.curve.sizes[0]:
            raise ValueError(f"{owner}: devices is {self.devices}, but must be at least {self.curve.sizes[0]}, the "
                             "fewest of its curve; ask for more")  # fmt: skip


@final
@dataclasses.dataclass(frozen=True)
class Pool:
    """Equal hosts whose devices, cores and memory, so much of each on a host, are shared out."""

    hosts: int
    devices: int
    cores: float
    memory_bytes: float

    def __post_init__(self) -> None:
        checks.count("pool", "hosts", self.hosts)
        checks.count("pool", "devices", self.devices)
        checks.fields("pool", self, "cores memory_bytes")

    @classmethod
    def of(cls, cluster: Cluster, cores: float, memory_bytes: float) -> Pool:
        """Returns the pool of a cluster's hosts, with the cores and the bytes of memory that each of them has."""
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
    """A host, by its index, that is lost at a time, or comes back: whether it is present from then on."""

    at_s: float
    host: int
    present: bool


@final
@dataclasses.dataclass(frozen=True)
class Workload:
    """Jobs, in the order in which they come, on a pool of hosts, which are all there at the beginning and change in the
    order of times. A job loses `restart_s` seconds when it goes on after a pause, or on other devices.
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
