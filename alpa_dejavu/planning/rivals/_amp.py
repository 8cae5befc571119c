"""AMP: every uniform (data, tensor, pipeline) division and micro-batch size, each cut by its pipeline program.

AMP's own reckoning of a step has terms for computing, the pipeline, and data and tensor parallelism. Links are rates
alone, without latencies. Once a step the gradients are summed in a ring over each stage's replicas; the slowest ring
counts. The optimizer and the start of computations aren't in AMP's model.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray, range_sum
from alpa_dejavu._util.ties import least, ordered
from alpa_dejavu.clusters.space import divisors
from alpa_dejavu.planning.rivals._base import Strategy, StrategyChoice
from alpa_dejavu.planning.rivals._orders import host_orders
from alpa_dejavu.planning.rivals._task import StrategyTask
from alpa_dejavu.planning.rivals.stages import Pipeline, PlacedStage, config_of, ranks
from alpa_dejavu.problem import PHASES, NoPlanError, checks
from alpa_dejavu.slicing.amp_pipe import VARIANTS, amp_pipe_s, amp_starts


@final
@dataclasses.dataclass(frozen=True)
class Amp(Strategy):
    """A strategy that plans as AMP: the uniform division with the shortest step by AMP's cost model that fits into
    memory.

    Tensor-parallel devices are in one host, ranks are numbered tensor parallel first, then data, then pipeline, and all
    stages have the same degrees of parallelism. AMP itself runs its best candidates; here those that don't fit are left
    out, and of the `trials` best by AMP's estimate the one with the shortest simulated step is taken. If none fits, the
    best by AMP's estimate is taken. The variants differ in details of the cost model, and in the order of the hosts:
    "paper" tries up to `orders` orders of their kinds, drawn by a seed; "released" has the cluster's. Raises ValueError
    for another variant, numbers below one and, when planning, hosts with unlike numbers of devices.

    References:
        Li et al., AMP: Automatically Finding Model Parallel Strategies with Heterogeneity Awareness, NeurIPS 2022, and
        the code that its authors released.
    """

    variant: str = "paper"  # "paper" or "released" (the authors' code)
    trials: int = 1
    orders: int = 24  # how many orders of the hosts are tried at most

    def __post_init__(self) -> None:
        checks.one_of("amp", "variant", self.variant, VARIANTS)
        checks.positive("amp", "trials", self.trials)
        checks.positive("amp", "orders", self.orders)

    @property
    def name(self) -> str:
        return f"amp ({self.variant})"

    def estimates(self, task: StrategyTask) -> list[tuple[float, Pipeline]]:
        """Returns AMP's candidate pipelines, each after its estimated seconds of a step, the shortest first."""
        hosts = tuple(range(len(task.cluster.hosts)))
        orders = host_orders(task.cluster, hosts, self.orders) if self.variant == "paper" else [hosts]
        candidates = []
        for degrees, order in itertools.product(_degrees(task), orders):
            costs = AmpCosts(task, degrees, ranks(task.cluster, order), self.variant)
            starts = costs.starts()
            if starts:
                candidates.append((costs.step_s(starts), costs.pipeline(starts)))
        return ordered(candidates, key=lambda candidate: candidate[0])

    def _choose(self, task: StrategyTask) -> StrategyChoice:
        candidates = self.estimates(task)
        if not candidates:
            raise NoPlanError(
                f"AMP has no plan for {task.model.num_layers} layers and a batch of {task.batch}{task.in_parts} on "
                f"{task.cluster.name}; give a batch that some number of its devices divides"
            )
        fitting = [candidate for candidate in candidates if task.fits(candidate[1])]
        own_s, pipeline = least(
            fitting[: self.trials] or candidates[:1], key=lambda candidate: task.step_s(candidate[1])
        )
        return StrategyChoice((pipeline,), own_s, len(candidates))


@final
@dataclasses.dataclass(frozen=True)
class Degrees:
    """The numbers of replicas, tensor-parallel devices and stages; a replica has `count` micro-batches of `samples`."""

    data: int
    tensor: int
    pipeline: int
    samples: int
    count: int


def _degrees(task: StrategyTask) -> Iterator[Degrees]:
    """Yields all degrees that divide the devices and the batch."""
    numbers = sorted({host.num_devices for host in task.cluster.hosts})
    if len(numbers) != 1:
        raise ValueError(
            f"amp: the hosts of cluster {task.cluster.name} have {numbers} devices; AMP numbers its ranks on hosts "
            "with equally many: leave some out"
        )
    devices = task.cluster.num_devices
    for tensor in divisors(numbers[0]):
        for data in divisors(devices // tensor):
            stages = devices // tensor // data
            if task.batch % data == 0 and stages <= task.model.num_layers:
                for samples in task.cuts(task.batch // data):
                    yield Degrees(data, tensor, stages, samples, task.batch // data // samples)


@final
class AmpCosts:
    """The cost model of AMP, for one choice of parallel degrees and one order of ranks (the host of each device).

    By "paper" a stage computes as fast as its slowest device, a transfer is as slow as the slowest replica's, and a
    ring all-reduce as its slowest link. By "released", as the released code, all stages compute as fast as the
    cluster's devices on average; a transfer takes the average over the replicas; and a ring is as slow as the one link
    that closes it, since the code looks for the slowest link outside of the loop over links.
    """

    def __init__(self, task: StrategyTask, degrees: Degrees, ranks: tuple[int, ...], variant: str) -> None:
        self._degrees, self._num_layers, self._cluster = degrees, task.model.num_layers, task.cluster
        self._released, self._variant = variant == "released", variant
        size = degrees.data * degrees.tensor
        self._hosts = [ranks[stage * size : (stage + 1) * size] for stage in range(degrees.pipeline)]
        self._costs = task.stage_costs(degrees.data * degrees.samples)
        self._config = config_of(degrees.data, degrees.tensor)

    def starts(self) -> tuple[int, ...]:
        """Returns the first layer of each stage, as AMP's dynamic program cuts the pipeline."""
        return amp_starts(self._stage_s, self._cut_s, self._degrees.count, self._variant)

    def step_s(self, starts: tuple[int, ...]) -> float:
        """Returns AMP's estimate of the seconds of a step whose stages begin at the given layers."""
        return amp_pipe_s(starts, self._stage_s, self._cut_s, self._degrees.count) + self._gradients_s(starts)

    def pipeline(self, starts: tuple[int, ...]) -> Pipeline:
        """Returns the pipeline whose stages begin at the given layers."""
        ends = zip(starts, [*starts[1:], self._num_layers], self._hosts, strict=True)
        stages = tuple(PlacedStage(start, end - 1, hosts, self._config) for start, end, hosts in ends)
        return Pipeline(stages, self._degrees.data * self._degrees.samples, self._degrees.count)

    @functools.cached_property
    def _stage_s(self) -> FloatArray:
        """Returns the seconds of layers i..j as each of K stages, for a micro-batch; shape (K, L, L)."""
        on_host = [self._on_host_s(host) for host in range(len(self._cluster.hosts))]
        if self._released:
            share = [host.num_devices / self._cluster.num_devices for host in self._cluster.hosts]
            average = sum((part * own for part, own in zip(share, on_host, strict=True)), np.zeros_like(on_host[0]))
            return np.broadcast_to(average, (self._degrees.pipeline, *average.shape))
        return np.stack([np.max([on_host[host] for host in sorted(set(hosts))], axis=0) for hosts in self._hosts])

    def _on_host_s(self, host: int) -> FloatArray:
        """Returns the seconds of layers i..j on a host's devices: computing and tensor-parallel sums; shape (L, L)."""
        forward, backward, _ = self._costs.computed_s(self._costs.places.on((host,)), self._config)
        if self._degrees.tensor == 1:
            return forward + backward
        rate = self._cluster.links[host][host].group_bytes_per_s(self._degrees.tensor)
        return forward + backward + range_sum(self._summed_bytes / rate)

    @functools.cached_property
    def _summed_bytes(self) -> FloatArray:
        """Returns the bytes of each layer through each tensor-parallel device's link for a micro-batch, shape (L,)."""
        size, division = self._degrees.tensor, self._costs.division(self._config)
        num_bytes = np.zeros(self._num_layers)
        for layer, phase in itertools.product(range(self._num_layers), PHASES[:2]):
            for collective in division.exchanges(layer, phase):
                if collective.axis == 1:
                    rounds = 2 if collective.kind == "all_reduce" else 1
                    num_bytes[layer] += rounds * (size - 1) / size * float(collective.num_bytes @ collective.counts)
        return num_bytes

    @functools.cached_property
    def _cut_s(self) -> FloatArray:
        """Returns the seconds of sending a replica's activations forward at each cut, shape (K - 1, L)."""
        num_bytes = self._costs.interstage.bytes.forward_bytes / self._degrees.data
        rows = []
        for before, after in itertools.pairwise(self._hosts):
            pairs = [1 / self._cluster.links[a][b].sending[1] for a, b in zip(before, after, strict=True)]
            slowest = np.reshape(pairs, (self._degrees.data, self._degrees.tensor)).max(axis=1)
            rows.append(num_bytes * (slowest.mean() if self._released else slowest.max()))
        return np.reshape(rows, (-1, self._num_layers))

    def _gradients_s(self, starts: tuple[int, ...]) -> float:
        """Returns the seconds of summing gradients in the slowest ring of all stages."""
        data, tensor = self._degrees.data, self._degrees.tensor
        if data == 1:
            return 0.0
        rings = []
        for start, end, hosts in zip(starts, [*starts[1:], self._num_layers], self._hosts, strict=True):
            num_bytes = float(self._costs.gradient_bytes[start, end - 1]) / tensor
            for ring in (hosts[n::tensor] for n in range(tensor)):
                rates = [self._ring_rate(*pair) for pair in zip(ring, (*ring[1:], ring[0]), strict=True)]
                rings.append(2 * (data - 1) / data * num_bytes / (rates[-1] if self._released else min(rates)))
        return max(rings)

    def _ring_rate(self, sender: int, receiver: int) -> float:
        link = self._cluster.links[sender][receiver]
        return link.group_bytes_per_s(self._degrees.data) if sender == receiver else link.bytes_per_s
