"""Prices copies of each stage's training state in the memory of a neighbour's host, and says how often to make them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import final

from alpa_dejavu._util import units
from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.costs.checkpoint_interval import best_checkpoint_interval_s
from alpa_dejavu.planning.changed.state_migration import Traffic
from alpa_dejavu.problem import Cluster, Host, Plan, StagePlan, checks

_VERSIONS = 2
"""Each host keeps the last copy until the next one is whole."""


@final
@dataclasses.dataclass(frozen=True)
class HostCopy:
    """The copy of one host's training state: the bytes that go to a neighbour (empty: what the host has, other hosts of
    its stages have anyway), and those that its own state and its neighbours' take in its memory, this copy and the
    last.
    """

    host: str
    neighbour: str
    sent_bytes: float
    memory_bytes: float


@final
@dataclasses.dataclass(frozen=True)
class NeighbourCopies:
    """Copies of a plan's training state in neighbours' memory, priced."""

    hosts: tuple[HostCopy, ...]  # one for each host that the plan uses
    copy_s: float  # the seconds of a copy, in which training waits
    every: int  # the steps between two copies
    step_s: float  # the seconds that copies add to a step on average
    lost_s: float  # the seconds of steps that a failure makes undone, on average
    between_s: float  # the mean seconds between two failures of any of the hosts

    @property
    def neighbours(self) -> dict[str, str]:
        """Returns by its name the host that keeps each host's copy, for `AlpaSession`."""
        return {copy.host: copy.neighbour for copy in self.hosts if copy.neighbour}


def neighbour_copies(
    plan: Plan, cluster: Cluster, state: FloatArray, host_fails_every_s: float, every: int | None = None
) -> NeighbourCopies:
    """Returns what copies of the training state in neighbours' memory cost, and after how many steps they cost least;
    `state` has the bytes of L layers' parameters and optimizer's state, (L, 2). ValueError if the plan is on one host,
    hosts have too little memory, or a number isn't above 0.

    Each host sends its stages' state to the host that has it soonest, but what data-parallel hosts have too; all at the
    same time, after their devices have given it to the host's memory. Hosts of unknown memory are taken to have enough.

    References:
        Chen et al., FTPipeHD: A Fault-Tolerant Pipeline-Parallel Distributed Training Framework for Heterogeneous Edge
        Devices, 2021. Young, A First Order Approximation to the Optimum Checkpoint Interval, CACM 17(9), 1974.
    """
    checks.positive("neighbour copies", "host_fails_every_s", host_fails_every_s)
    if every is not None:
        checks.count("neighbour copies", "every", every)
    used = {host.name: host for host in cluster.hosts if host.name in plan.devices_of_hosts}
    if len(used) < 2:
        raise ValueError(f"the plan is on {next(iter(used))} alone, but must be on two hosts or more for copies on a "
                         "neighbour's; write checkpoints instead")  # fmt: skip
    own, to_send = _states(plan.stages, state, list(used))
    for name, num_bytes in own.items():
        if _VERSIONS * num_bytes > _memory(used[name]):
            raise ValueError(f"host {name} has {units.size(_memory(used[name]))} of memory, but must have "
                             f"{units.size(_VERSIONS * num_bytes)} for its own state, this copy and the last; "
                             "write checkpoints instead")  # fmt: skip
    traffic, kept, neighbours = Traffic(cluster), dict(own), dict.fromkeys(used, "")
    for host in sorted(filter(to_send.get, used), key=lambda name: -to_send[name]):
        neighbour = neighbours[host] = _soonest(host, to_send[host], used, kept, traffic)
        traffic.send(host, neighbour, to_send[host])
        kept[neighbour] += to_send[host]
    # A copy goes from the devices to the slowest host's memory, and over the busiest link.
    to_memory_s = [own[name] / host.memory.shared_bytes_per_s for name, host in used.items() if host.memory]
    copy_s, between_s = max(to_memory_s, default=0.0) + traffic.seconds, host_fails_every_s / len(used)
    count = every or _best_count(copy_s, between_s, plan.step_s)
    copies = tuple(HostCopy(host, neighbours[host], to_send[host], _VERSIONS * kept[host]) for host in used)
    return NeighbourCopies(copies, copy_s, count, copy_s / count, count * plan.step_s / 2, between_s)


def _best_count(copy_s: float, between_s: float, step_s: float) -> int:
    """Returns the whole number of steps next to Young's interval that costs less."""
    steps = best_checkpoint_interval_s(copy_s, between_s) / step_s
    near = {max(math.floor(steps), 1), max(math.ceil(steps), 1)}
    return min(near, key=lambda count: (copy_s / count + count * step_s**2 / (2 * between_s), count))


def _states(
    stages: Sequence[StagePlan], state: FloatArray, hosts: Sequence[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the bytes of training state that each host keeps of its own, and those that it must send to another."""
    own, to_send = dict.fromkeys(hosts, 0.0), dict.fromkeys(hosts, 0.0)
    for stage in stages:
        first, last = stage.layers
        parameters, moments = map(float, state[first : last + 1].sum(axis=0))
        alike = stage.logical_mesh[-1] <= stage.submesh.devices_per_host
        divided = parameters * (stage.zero == 3 or not alike) + moments * (stage.zero > 0 or not alike)
        same, count = parameters + moments - divided, len(stage.hosts)
        for n, host in enumerate(stage.hosts):
            # Two hosts keep what all have; the others' is there too often already.
            own[host] += divided / count + (same if n < 2 else 0.0)
            to_send[host] += divided / count + (same if count == 1 else 0.0)
    return own, to_send


def _soonest(host: str, num_bytes: float, used: Mapping[str, Host], kept: Mapping[str, float], traffic: Traffic) -> str:
    """Returns the neighbour that has a host's state soonest, of those with enough memory."""
    names = list(used)
    place = names.index(host)
    left = {name: _memory(used[name]) - _VERSIONS * kept[name] for name in [*names[place + 1 :], *names[:place]]}
    fitting = [name for name in left if _VERSIONS * (kept[name] + num_bytes) <= _memory(used[name])]
    if not fitting:
        most = max(left, key=left.__getitem__)
        raise ValueError(f"no neighbour of {host} has {units.size(_VERSIONS * num_bytes)} of host memory left for "
                         f"this copy of its state and the last ({most} has most, {units.size(left[most])}); plan "
                         "for hosts with more memory, or write checkpoints instead")  # fmt: skip
    return min(fitting, key=lambda name: traffic.ready_s(host, name, num_bytes))


def _memory(host: Host) -> float:
    return math.inf if host.memory is None else host.memory.num_bytes
