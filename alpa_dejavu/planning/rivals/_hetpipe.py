"""HetPipe: pipelines of single devices within virtual workers, and data parallelism between these."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.planning.rivals._base import Strategy, StrategyChoice
from alpa_dejavu.planning.rivals._orders import host_orders
from alpa_dejavu.planning.rivals._task import StrategyTask
from alpa_dejavu.planning.rivals.stages import Pipeline, PlacedStage, config_of
from alpa_dejavu.problem import Cluster, NoPlanError, Run, checks

ALLOCATIONS = ("np", "ed", "hd")
_ORDERS = 24
_NOTE = (
    "HetPipe's virtual workers are pipelines that are never emptied and share parameters by waves, with staleness {}; "
    "Alpa's runtime has neither, so this is an estimate alone, and its steps train another way than synchronous ones"
)


@final
@dataclasses.dataclass(frozen=True)
class HetPipe(Strategy):
    """A strategy that plans as HetPipe: virtual workers, each a pipeline of the whole model, train data-parallel.

    A stage is one device. Each worker's layers are cut so that its slowest stage is as fast as memory allows, for up to
    24 orders of its kinds of devices, drawn by a seed, and all sizes of micro-batch. Each has an equal share of the
    batch and as many micro-batches under way as stages, which make a wave; the paper finds that number by profiling. By
    HetPipe's own cost model, in which links aren't shared, a step takes as long as the slowest stage for all
    micro-batches, and then the sum of gradients of each wave. The paper shares parameters through servers on all hosts;
    here the devices that hold a layer sum up its gradients.

    References:
        Park et al., HetPipe: Enabling Large DNN Training on (Whimpy) Heterogeneous GPU Clusters through Integration of
        Pipelined Model Parallelism and Data Parallelism, ATC 2020.
    """

    allocation: str = "ed"  # which devices make a virtual worker, as `virtual_workers` says it
    staleness: int = 0  # how many waves a virtual worker may be ahead of another; 0: all wait for each wave's sum

    def __post_init__(self) -> None:
        checks.one_of("hetpipe", "allocation", self.allocation, ALLOCATIONS)
        checks.not_negative("hetpipe", "staleness", self.staleness)

    @property
    def name(self) -> str:
        return f"hetpipe ({self.allocation})"

    def _choose(self, task: StrategyTask) -> StrategyChoice:
        workers = virtual_workers(task.cluster, self.allocation)
        if task.batch % len(workers):
            raise ValueError(
                f"hetpipe: {len(workers)} virtual workers can't share a batch of {task.batch} equally; give a multiple"
            )
        longest = max(map(len, workers))
        if longest > task.model.num_layers:
            raise ValueError(
                f"hetpipe: a virtual worker has {longest} devices, but the model {task.model.num_layers} layers, and "
                "each device needs one; cut the model into more layers"
            )
        share = task.batch // len(workers)
        if not task.cuts(share):
            raise ValueError(
                f"hetpipe: each of {len(workers)} virtual workers has {share} samples, which can't be cut"
                f"{task.in_parts}; give another number, or none"
            )
        cuts = {worker: _cut(task, worker, share) for worker in dict.fromkeys(workers)}
        pipelines = tuple(cuts[worker][1] for worker in workers)
        own_s = task.with_waves_s(pipelines, max(pace_s for pace_s, *_ in cuts.values()), self.staleness)
        tried = sum(tried for *_, tried in cuts.values())
        return StrategyChoice(pipelines, own_s, tried, self.staleness, (_NOTE.format(self.staleness),))


def virtual_workers(cluster: Cluster, allocation: str) -> list[tuple[int, ...]]:
    """Returns for each of HetPipe's virtual workers the index of the host of each of its devices; ValueError for an
    unknown allocation, or hosts that it can't be made of.

    By "np", node partition, a host is a virtual worker. By "ed", equal distribution, each has one device of every host.
    By "hd", hybrid distribution, hosts are in pairs, the fastest with the slowest, and two virtual workers of a pair
    have half of the devices of both each (Park et al., HetPipe, ATC 2020, section 8; it pairs its GPUs by performance
    and memory).

    >>> from alpa_dejavu.testing import example_cluster
    >>> virtual_workers(example_cluster(2, 2), "ed")
    [(0, 1), (0, 1)]
    """
    checks.one_of("hetpipe", "allocation", allocation, ALLOCATIONS)
    hosts = cluster.hosts
    numbers = [host.num_devices for host in hosts]
    if allocation == "np":
        return [(n,) * count for n, count in enumerate(numbers)]
    if len(set(numbers)) != 1:
        raise ValueError(
            f"hetpipe: the hosts of {cluster.name} have {numbers} devices; {allocation!r} needs equally many in each: "
            "take 'np', or leave some out"
        )
    if allocation == "ed":
        return [tuple(range(len(hosts)))] * numbers[0]
    if len(hosts) % 2 or numbers[0] % 2:
        raise ValueError(
            f"hetpipe: {cluster.name} has {len(hosts)} hosts of {numbers[0]} devices; 'hd' pairs hosts and halves "
            "their devices, so both must be even: take 'np' or 'ed'"
        )
    fastest = sorted(range(len(hosts)), key=lambda n: -hosts[n].device.rate("float32"))
    half = numbers[0] // 2
    pairs = [(fastest[n], fastest[-1 - n]) for n in range(len(hosts) // 2)]
    return [(fast,) * half + (slow,) * half for fast, slow in pairs for _ in range(2)]


def _cut(task: StrategyTask, worker: tuple[int, ...], share: int) -> tuple[float, Pipeline, int]:
    """Returns the seconds of a virtual worker for its share, its pipeline, and how many were tried."""
    best_s, best, tried = math.inf, None, 0
    for hosts, samples in itertools.product(host_orders(task.cluster, worker, _ORDERS), task.cuts(share)):
        tried += 1
        slowest_s, stages = _fastest(task, hosts, samples, share // samples)
        if stages and slowest_s * (share // samples) < best_s:
            best_s, best = slowest_s * (share // samples), Pipeline(stages, samples, share // samples)
    if best is None:
        names = [task.cluster.hosts[host].name for host in worker]
        raise NoPlanError(
            f"hetpipe: the model doesn't fit a virtual worker of the devices of {names}; give devices with more "
            "memory, or another allocation"
        )
    return best_s, best, tried


def _fastest(
    task: StrategyTask, hosts: tuple[int, ...], samples: int, count: int
) -> tuple[float, tuple[PlacedStage, ...]]:
    """Returns the least seconds of the slowest stage, and the stages, each on one of these hosts' devices in order, for
    so many micro-batches of so many samples; none if memory doesn't do.
    """
    costs, config, num_layers = task.stage_costs(samples), config_of(1, 1), task.model.num_layers
    memory, left = task.margin.needed(costs.memory(config)), task.models.runtime.hosts(task.cluster.hosts)
    # A column for the layers that are done: the least seconds of the slowest stage up to them, stage by stage.
    done_s, came_from = np.array([0.0, *[np.inf] * num_layers]), []
    for n, host in enumerate(hosts):
        needed = memory.peak(Run(count).in_flight(len(hosts) - 1 - n))
        forward, backward, _ = costs.computed_s(costs.places.on((host,)), config)
        stage_s = forward + backward + _taking_in_s(task, samples, hosts, n)
        fits = (needed <= task.margin.usable_bytes(left[host])) & np.tri(num_layers, dtype=np.bool_).T
        worst_s = np.maximum(done_s[:-1, None], np.where(fits, stage_s, np.inf))
        came_from.append(worst_s.argmin(axis=0))
        done_s = np.concatenate([[np.inf], worst_s.min(axis=0)])
    if math.isinf(done_s[-1]):
        return math.inf, ()
    bounds = [num_layers]
    for column in reversed(came_from):
        bounds.append(int(column[bounds[-1] - 1]))
    cuts = zip(hosts, itertools.pairwise(reversed(bounds)), strict=True)
    return float(done_s[-1]), tuple(PlacedStage(first, end - 1, (host,), config) for host, (first, end) in cuts)


def _taking_in_s(task: StrategyTask, samples: int, hosts: tuple[int, ...], stage: int) -> FloatArray:
    """Returns the seconds of taking a micro-batch in from both neighbours, by a stage's layers i..j; shape (L, L)."""
    sent, num_layers = task.stage_costs(samples).interstage.bytes, task.model.num_layers
    total_s = np.zeros((num_layers, num_layers))
    ways = (sent.forward_bytes[:, None], stage - 1), (np.append(sent.backward_bytes[1:], 0.0)[None], stage + 1)
    for num_bytes, neighbour in ways:
        if 0 <= neighbour < len(hosts):
            latency_s, rate = task.cluster.links[hosts[neighbour]][hosts[stage]].sending
            total_s = total_s + np.where(num_bytes > 0, latency_s + num_bytes / rate, 0.0)
    return total_s
