"""The smallest changes by which a model would fit, where nothing fits: each is tried before it is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import final

from alpa_dejavu._util import units
from alpa_dejavu._util.phases import phase
from alpa_dejavu.clusters.changed_cluster import with_hosts
from alpa_dejavu.clusters.offload_choices import check_offload
from alpa_dejavu.planning.search._bench import Bench
from alpa_dejavu.planning.search._clock import Clock
from alpa_dejavu.planning.search._shapes import Shape
from alpa_dejavu.planning.task import PlanningTask, SpaceRules
from alpa_dejavu.problem import Cluster, NoPlanError
from alpa_dejavu.problem.run import ALPA_SCHEDULES

__all__ = ["Remedies", "remedies"]

_MOST_TIMES, _MOST_DEVICES = 64, 1024
"""So many times the hosts, and so many devices, are tried at most."""


@final
@dataclasses.dataclass(frozen=True)
class Remedies:
    """The changes that were tried where nothing fits.

    Attributes:
        enough: the smallest changes by which there is a plan, as flags of the command line.
        tried: the kinds of changes that were tried.
    """

    enough: tuple[str, ...]
    tried: tuple[str, ...]

    def instead_of(self, error: NoPlanError) -> NoPlanError:
        """Returns the error that also says which changes are enough, or that none of those that were tried is; what is
        enough takes the place of advice that wasn't tried.
        """
        if self.enough:
            return NoPlanError(error.said, self.enough, f"tried, and enough: {' or '.join(self.enough)}")
        not_enough = f"tried, and not enough: {', '.join(self.tried)}" if self.tried else ""
        return NoPlanError(error.said, advice="; ".join(filter(None, (error.advice, not_enough))))


def remedies(task: PlanningTask, micro_batches: Sequence[int], layers: Sequence[int]) -> Remedies:
    """Returns the smallest changes by which a task that nothing fits would have a plan; each was tried.

    Args:
        task: the task.
        micro_batches: the numbers of micro-batches that could be asked for in place of the task's, ascending.
        layers: the numbers of layers that could be.
    """
    found, tried = list[str](), list[str]()
    for name, would_do in (
        ("more micro-batches", _more_micro_batches(task, micro_batches)),
        ("more layers", _more_layers(task, layers)),
        ("remat", _all_of(task, "remat")),
        ("ZeRO", _all_of(task, "zero")),
        ("offload", _offload(task)),
        ("more hosts", _more_hosts(task)),
    ):
        for flag in would_do:
            tried += [] if name in tried else [name]
            found += [flag] if flag else []
            if flag:
                break
    return Remedies(tuple(found), tuple(tried))


def _more_micro_batches(task: PlanningTask, counts: Sequence[int]) -> Iterator[str]:
    for count in counts if task.source.traces else ():
        if count > task.micro_batches[-1]:
            yield f"--micro-batches {count}" * _fits(dataclasses.replace(task, micro_batches=(count,)))


def _more_layers(task: PlanningTask, numbers: Sequence[int]) -> Iterator[str]:
    for number in numbers if task.source.traces else ():
        if number > task.layers[-1]:
            yield f"--layers {number}" * _fits(dataclasses.replace(task, layers=(number,)))


def _all_of(task: PlanningTask, name: str) -> Iterator[str]:
    """All choices of remat or of ZeRO, where a task has only some."""
    choices = getattr(SpaceRules(), name)
    if isinstance(task.space, SpaceRules) and set(getattr(task.space, name)) != set(choices):
        space = dataclasses.replace(task.space, **{name: choices})
        yield f"--{name} auto" * _fits(dataclasses.replace(task, space=space))


def _offload(task: PlanningTask) -> Iterator[str]:
    if not isinstance(task.space, SpaceRules) or task.space.offload != "none" or task.schedule not in ALPA_SCHEDULES:
        return
    for choice in ("cpu", "auto"):
        try:
            check_offload(choice, task.cluster)
        except ValueError:  # not enough is known of the hosts' memory
            return
        space = dataclasses.replace(task.space, offload=choice)
        yield f"--offload {choice}" * _fits(dataclasses.replace(task, space=space))


def _more_hosts(task: PlanningTask) -> Iterator[str]:
    """Numbers of hosts are doubled until something fits, and then halved in between."""
    cluster = task.cluster
    there, each = len(cluster.hosts), cluster.hosts[0].num_devices
    most = min(_MOST_TIMES * there, _MOST_DEVICES // each)
    if task.unlike or cluster.shared or there >= most:
        return

    def fits(count: int) -> bool:
        grown = _grown(cluster, count)
        return grown is not None and _fits(task.on(grown))

    low, high = there, min(2 * there, most)
    while not fits(high):
        yield ""
        if high >= most:
            return
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    yield f"--hosts {high}"


def _grown(cluster: Cluster, count: int) -> Cluster | None:
    """The cluster with so many hosts like its own; None where it isn't known what would join them."""
    names = [f"{cluster.name} {n}" for n in range(len(cluster.hosts), count)]
    try:
        return with_hosts(cluster, dict.fromkeys(names, cluster.hosts[0].num_devices))
    except ValueError:
        return None


def _fits(task: PlanningTask) -> bool:
    """Whether there is a plan with the most layers, and the smallest micro-batches or those that a host can share."""
    phase(f"whether it fits on {units.counted(len(task.cluster.hosts), 'host')}")
    bench, devices = Bench(task, Clock()), task.cluster.hosts[0].num_devices
    shared = [count for count in task.micro_batches if task.micro_batch(count) >= devices]
    for count in dict.fromkeys((task.micro_batches[-1], *shared[-1:])):
        try:
            if bench.candidate(Shape(task.layers[-1], count)) is not None:
                return True
        except NoPlanError:  # no submesh is for such micro-batches
            continue
    return False
