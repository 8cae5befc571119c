"""AMP's own reckoning of a step: its terms for computing, the pipeline, and data and tensor parallelism.

Links are rates alone, without latencies. Once a step the gradients are summed in a ring over each stage's replicas; the
slowest ring counts. The optimizer and the start of computations aren't in AMP's model.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray, range_sum
from alpa_dejavu.planning.rivals._task import Task
from alpa_dejavu.planning.rivals.stages import config_of
from alpa_dejavu.problem import PHASES
from alpa_dejavu.slicing.amp_pipe import amp_pipe_s, amp_starts

__all__ = ["AmpCosts", "Degrees"]


@final
@dataclasses.dataclass(frozen=True)
class Degrees:
    """The degrees of AMP's parallelism: the numbers of replicas, tensor-parallel devices, and stages.

    Each replica has `count` micro-batches of `each` samples.
    """

    data: int
    tensor: int
    pipeline: int
    each: int
    count: int


@final
class AmpCosts:
    """The cost model of AMP, for one choice of parallel degrees and one order of ranks.

    Args:
        task: the model and the cluster.
        degrees: the numbers of replicas, tensor-parallel devices and stages.
        ranks: the index of the host of each device.
        variant: "paper": a stage computes as fast as its slowest device, a transfer between stages is as slow as the
            slowest replica's, and a ring all-reduce as its slowest link. "released", as the released code: all stages
            compute as fast as the cluster's devices on average; a transfer takes the average over the replicas; and a
            ring is as slow as the one link that closes it, since the code looks for the slowest link outside of the
            loop over links.

    The paper doesn't say clearly how unlike devices within one stage count; it is taken to be by the slowest.
    """

    def __init__(self, task: Task, degrees: Degrees, ranks: tuple[int, ...], variant: str) -> None:
        self.degrees, self.num_layers = degrees, task.model.num_layers
        self._variant, self._ranks, self._cluster = variant, ranks, task.cluster
        self._costs = task.stage_costs(degrees.data * degrees.each)
        self._config = config_of(degrees.data, degrees.tensor)

    def hosts(self, stage: int) -> tuple[int, ...]:
        """Returns for each device of a stage the index of its host."""
        size = self.degrees.data * self.degrees.tensor
        return self._ranks[stage * size : (stage + 1) * size]

    def starts(self) -> tuple[int, ...]:
        """Returns the first layer of each stage, as AMP's dynamic program cuts the pipeline."""
        return amp_starts(self._stage_s, self._cut_s, self.degrees.count, self._variant)

    def step_s(self, starts: tuple[int, ...]) -> float:
        """Returns AMP's estimate of the seconds of a step whose stages begin at the given layers."""
        return amp_pipe_s(starts, self._stage_s, self._cut_s, self.degrees.count) + self._gradients_s(starts)

    @functools.cached_property
    def _stage_s(self) -> FloatArray:
        """Returns the seconds of layers i..j as each of K stages, for a micro-batch; shape (K, L, L)."""
        on_host = [self._on_host_s(host) for host in range(len(self._cluster.hosts))]
        if self._variant == "released":
            share = [host.num_devices / self._cluster.num_devices for host in self._cluster.hosts]
            average = sum((each * own for each, own in zip(share, on_host, strict=True)), np.zeros_like(on_host[0]))
            return np.broadcast_to(average, (self.degrees.pipeline, *average.shape))
        stages = [sorted(set(self.hosts(n))) for n in range(self.degrees.pipeline)]
        return np.stack([np.max([on_host[host] for host in hosts], axis=0) for hosts in stages])

    def _on_host_s(self, host: int) -> FloatArray:
        """Returns the seconds of layers i..j on a host's devices: computing and tensor-parallel sums; shape (L, L)."""
        forward, backward, _ = self._costs.computed_s(self._costs.places.on((host,)), self._config)
        compute = forward + backward
        if self.degrees.tensor == 1:
            return compute
        rate = self._cluster.links[host][host].group_bytes_per_s(self.degrees.tensor)
        return compute + range_sum(self._summed_bytes / rate)

    @functools.cached_property
    def _summed_bytes(self) -> FloatArray:
        """Returns the bytes of each layer through each tensor-parallel device's link for a micro-batch, shape (L,)."""
        size, division = self.degrees.tensor, self._costs.division(self._config)
        found = np.zeros(self.num_layers)
        for n in range(self.num_layers):
            for phase in PHASES[:2]:
                for one in division.exchanges(n, phase):
                    if one.axis == 1:
                        rounds = 2 if one.kind == "all_reduce" else 1
                        found[n] += rounds * (size - 1) / size * float(one.num_bytes @ one.counts)
        return found

    @functools.cached_property
    def _cut_s(self) -> FloatArray:
        """Returns the seconds of sending activations forward at each cut, shape (K - 1, L).

        They are those of one replica, each device of which sends all of them to its like.
        """
        degrees = self.degrees
        num_bytes = self._costs.interstage.bytes.forward_bytes / degrees.data
        rows = []
        for n in range(degrees.pipeline - 1):
            pairs = [1 / self._rate(*ends, sending=True) for ends in zip(self.hosts(n), self.hosts(n + 1), strict=True)]
            slowest = np.reshape(pairs, (degrees.data, degrees.tensor)).max(axis=1)
            rows.append(num_bytes * (slowest.mean() if self._variant == "released" else slowest.max()))
        return np.reshape(rows, (-1, self.num_layers))

    def _gradients_s(self, starts: tuple[int, ...]) -> float:
        """Returns the seconds of summing gradients in the slowest ring of all stages."""
        degrees = self.degrees
        if degrees.data == 1:
            return 0.0
        ends, found = [*starts[1:], self.num_layers], []
        for n, (start, end) in enumerate(zip(starts, ends, strict=True)):
            num_bytes = float(self._costs.gradient_bytes[start, end - 1]) / degrees.tensor
            for k in range(degrees.tensor):
                ring = self.hosts(n)[k :: degrees.tensor]
                rates = [self._rate(*pair) for pair in zip(ring, (*ring[1:], ring[0]), strict=True)]
                rate = rates[-1] if self._variant == "released" else min(rates)
                found.append(2 * (degrees.data - 1) / degrees.data * num_bytes / rate)
        return max(found)

    def _rate(self, sender: int, receiver: int, sending: bool = False) -> float:
        """Returns the bytes per second of the link between two devices."""
        link = self._cluster.links[sender][receiver]
        if sending:
            return link.sending[1]
        return link.group_bytes_per_s(self.degrees.data) if sender == receiver else link.bytes_per_s
