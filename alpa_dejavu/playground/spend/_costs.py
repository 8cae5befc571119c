"""The ways to spend devices that are compared."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import final

from alpa_dejavu.planning import PlanningResult
from alpa_dejavu.problem import Cluster, NoPlanError

HISTORY = 20
"""Points that OptEx keeps."""


@final
@dataclasses.dataclass(frozen=True)
class Way:
    """A way to spend a cluster's devices.

    Attributes:
        kind: "plain": all devices make each step faster; "batch": they take a larger batch; "starts": parts of the
            cluster race as many starts, and all of it trains the best one on; "optex": parts of the cluster compute
            gradients at as many points of a walk.
        times: how many times as large the batch is, or how many starts or points there are.
    """

    kind: str
    times: int = 1

    def __str__(self) -> str:
        return {
            "plain": "as it is",
            "batch": f"a batch {self.times} times as large",
            "starts": f"{self.times} starts",
            "optex": f"OptEx, {self.times} points",
        }[self.kind]


def ways(num_devices: int) -> tuple[Way, ...]:
    """Returns the ways to spend so many devices, in powers of two; starts and points each have an equal part of them.

    >>> [str(way) for way in ways(2)]
    ['as it is', 'a batch 2 times as large', '2 starts', 'OptEx, 2 points']
    """
    powers = [times for times in (2, 4, 8) if num_devices % times == 0]
    return (Way("plain"), *(Way(kind, times) for kind in ("batch", "starts", "optex") for times in powers))


@final
@dataclasses.dataclass(frozen=True)
class Cost:
    """The predicted seconds of a way's step, those while starts race, and of the step's those in which OptEx's
    gradients go round and are estimated; the devices of each start, point or step; and why it can't be taken.
    """

    step_s: float
    race_step_s: float | None = None
    exchange_s: float = 0.0
    devices: int = 0
    why: str = ""


@final
class SpendCosts:
    """The costs of ways on a cluster, each of which is planned once for a cluster and a batch; `plain` is the plan of a
    plain step, and NoPlanError is raised if the model doesn't fit for that.
    """

    def __init__(self, plan: Callable[[Cluster, int], PlanningResult], cluster: Cluster, batch: int) -> None:
        self._cluster, self._batch = cluster, batch
        self._planned = functools.cache(plan)
        self.plain = self._planned(cluster, batch)

    def of(self, way: Way) -> Cost:
        """Returns what a way's step costs, or why it can't be taken."""
        splits = way.times if way.kind in ("starts", "optex") else 1
        batch, devices = self._batch * (way.times if way.kind == "batch" else 1), self._cluster.num_devices // splits
        try:
            parts = [part_of(self._cluster, n, splits) for n in range(splits)] if splits > 1 else [self._cluster]
            planned = [self._planned(part, batch) for part in {_alike(part): part for part in parts}.values()]
        except NoPlanError as error:
            return Cost(float("inf"), devices=devices, why=str(error).partition("\n")[0])
        step_s = max(part_plan.plan.step_s for part_plan in planned)
        if splits == 1:
            return Cost(step_s, devices=devices)
        if way.kind == "starts":
            return Cost(self.plain.plan.step_s, step_s, devices=devices)
        lacking = next((why for part_plan in planned if (why := _history_lacks(part_plan, devices))), "")
        exchange_s = max(_exchange_s(part_plan, self._cluster, way.times, devices) for part_plan in planned)
        return Cost(step_s + exchange_s, None, exchange_s, devices, lacking)


def part_of(cluster: Cluster, number: int, count: int) -> Cluster:
    """Returns one of so many equal parts of a cluster's devices, in the order of hosts; raises ValueError if there
    would be a rest.

    >>> from alpa_dejavu.clusters import named_cluster
    >>> [host.num_devices for host in part_of(named_cluster("p3.16xlarge", 2), 1, 4).hosts]
    [4]
    """
    size, rest = divmod(cluster.num_devices, count)
    if rest:
        raise ValueError(f"count is {count}, but must divide {cluster.num_devices} devices; take a divisor")
    begin, chosen, before = number * size, {}, 0
    for place, host in enumerate(cluster.hosts):
        count_here = min(before + host.num_devices, begin + size) - max(before, begin)
        if count_here > 0:
            chosen[place] = dataclasses.replace(host, num_devices=count_here)
        before += host.num_devices
    part = cluster.part(list(chosen))
    cores = None if cluster.cores is None else max(1, cluster.cores // count)
    name = f"part {number + 1} of {count} of {cluster.name}"
    return dataclasses.replace(part, name=name, hosts=tuple(chosen.values()), cores=cores, machine="", machine_file="")


def _alike(part: Cluster) -> object:
    """Returns what parts have in common that have the same plan."""
    return tuple(dataclasses.replace(host, name="") for host in part.hosts), part.links


def _gradient_bytes(planned: PlanningResult) -> float:
    return sum(tensor.num_bytes for tensor in planned.model.tensors if tensor.role == "gradient")


def _history_lacks(planned: PlanningResult, devices: int) -> str:
    """Says if a history's points and gradients, divided over a part's devices, don't fit beside what a plan keeps."""
    needed = 2 * HISTORY * _gradient_bytes(planned) / devices
    free = min(stage.memory_limit_bytes - stage.memory_bytes for stage in planned.plan.stages)
    return "" if needed <= free else "its history doesn't fit beside the model"


def _exchange_s(planned: PlanningResult, cluster: Cluster, points: int, devices: int) -> float:
    """Each part sends its gradient's shards to all others, over the slowest link, and reads its whole history."""
    num_bytes = _gradient_bytes(planned)
    link = cluster.slowest_link(range(len(cluster.hosts)))
    sent_s = (points - 1) * (link.latency_s + num_bytes / devices / link.bytes_per_s)
    memory = min(host.device.memory_bytes_per_s for host in cluster.hosts)
    return sent_s + 2 * HISTORY * points * num_bytes / devices / memory
