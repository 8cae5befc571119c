"""The question that all strategies answer, and the truth that all answers are priced by."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import final

from alpa_dejavu.communication import CommunicationModel
from alpa_dejavu.latency import LatencyModel
from alpa_dejavu.memory_margin import UNMEASURED, MemoryMargin
from alpa_dejavu.micro_batch import with_micro_batch
from alpa_dejavu.planning._candidate import timeline_of
from alpa_dejavu.problem import Cluster, Model, Run, _check
from alpa_dejavu.simulate import StageTimes
from alpa_dejavu.strategies._divide import divisors
from alpa_dejavu.strategies._pricing import NOBODY, SitePricing
from alpa_dejavu.strategies._stages import Pipeline

__all__ = ["Task"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A training step to be divided among the devices of a cluster.

    Attributes:
        model: its layers, for a micro-batch of so many samples.
        samples: of that micro-batch.
        cluster: as it is.
        batch: samples of a step.
        latency, communication: by which everything is priced.
        micro_batches: so many there must be of a pipeline; None: a strategy chooses.
        margin: of memory.

    Raises ValueError for a model that isn't trained, numbers below one, and micro-batches that don't divide the batch.
    """

    model: Model
    samples: int
    cluster: Cluster
    batch: int
    latency: LatencyModel
    communication: CommunicationModel
    micro_batches: int | None = None
    margin: MemoryMargin = UNMEASURED
    _pricings: dict[int, SitePricing] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        _check.positive("strategy", "samples", self.samples)
        _check.positive("strategy", "batch", self.batch)
        if self.micro_batches is not None:
            _check.positive("strategy", "micro_batches", self.micro_batches)
            if self.batch % self.micro_batches:
                raise ValueError(
                    f"strategy: {self.micro_batches} micro-batches don't divide a batch of {self.batch}; give a divisor"
                )
        if not self.model.training:
            raise ValueError("strategy: the model isn't trained; these strategies are for training steps alone")

    def of(self, micro_batch: int) -> Model:
        """The model with another micro-batch."""
        return with_micro_batch(self.model, micro_batch / self.samples)

    @property
    def in_parts(self) -> str:
        """For errors: the number of micro-batches, where it is given."""
        return "" if self.micro_batches is None else f" in {self.micro_batches} micro-batches"

    def cuts(self, share: int) -> list[int]:
        """Samples of a micro-batch, of which so many make up a replica's share of the batch, ascending."""
        return [each for each in divisors(share) if self.micro_batches in (None, share // each)]

    def pricing(self, micro_batch: int) -> SitePricing:
        """Of a micro-batch of so many samples."""
        if micro_batch not in self._pricings:
            model = self.of(micro_batch)
            self._pricings[micro_batch] = SitePricing(model, self.cluster, self.latency, self.communication)
        return self._pricings[micro_batch]

    def step_s(self, pipeline: Pipeline) -> float:
        """Seconds of a step of one pipeline, simulated in 1F1B order."""
        return self._simulated(self._times(pipeline), pipeline.num_micro_batches)

    def fits(self, pipeline: Pipeline) -> bool:
        """Whether each stage has the memory for the micro-batches in flight that its place asks for."""
        times, run = self._times(pipeline), Run(pipeline.num_micro_batches)
        return all(
            self.margin.fits(
                {
                    "resident": stage.resident_bytes,
                    "per_micro_batch": stage.activation_bytes * run.in_flight(len(times) - 1 - n),
                    "temporary": stage.temporary_bytes,
                },
                [self.cluster.hosts[host] for host in placed.hosts],
            )
            for n, (stage, placed) in enumerate(zip(times, pipeline.stages, strict=True))
        )

    def steady_s(self, pipelines: Sequence[Pipeline], staleness: int) -> float:
        """Seconds of a step of several pipelines that are never emptied, and share their parameters by waves.

        A wave is as many micro-batches as a pipeline has stages. None can be more than `staleness` waves ahead of
        another, so in the long run the slowest sets the pace. Each wave the devices that hold a layer add up its
        gradients: with staleness 0 they wait for that, else it goes on beside computing. Pipelines that send from one
        host to the same other one share the link, as if they always did so at a time.
        """
        paces, waves = [], 1
        at_a_time = collections.Counter(itertools.chain.from_iterable(map(_crossed, pipelines)))
        for pipeline in pipelines:
            times, count = self._times(pipeline, at_a_time), pipeline.num_micro_batches
            own = math.ceil(count / len(times))
            filled = self._simulated(times, 2 * count) - self._simulated(times, count)
            paces.append(filled + own * max(stage.per_step_s for stage in times))
            waves = max(waves, own)
        shared = waves * self.sharing_s(pipelines)
        return max(paces) + shared if staleness == 0 else max(*paces, shared)

    def sharing_s(self, pipelines: Sequence[Pipeline]) -> float:
        """What one sum of the gradients takes among pipelines: all stages at a time, the slowest counts."""
        pricing = self.pricing(pipelines[0].micro_batch)
        bytes_of, at_a_time = pricing.gradient_bytes, max(len(pipeline.stages) for pipeline in pipelines)
        cuts = sorted({stage.first for pipeline in pipelines for stage in pipeline.stages})
        slowest = 0.0
        for pipeline in pipelines:
            for stage in pipeline.stages:
                total = 0.0
                for first, end in zip(cuts, [*cuts[1:], self.model.num_layers], strict=True):
                    if stage.first <= first <= stage.last:
                        hosts = tuple(_holder(other, first) for other in pipelines)
                        total += pricing.all_reduce_s(float(bytes_of[first, end - 1]), hosts, at_a_time)
                slowest = max(slowest, total)
        return slowest

    def _times(
        self, pipeline: Pipeline, at_a_time: Mapping[tuple[int, int], int] = NOBODY
    ) -> tuple[StageTimes, ...]:
        return self.pricing(pipeline.micro_batch).stage_times(pipeline.stages, at_a_time)

    def _simulated(self, times: tuple[StageTimes, ...], num_micro_batches: int) -> float:
        return timeline_of(times, self.cluster, Run(num_micro_batches)).step_s


def _crossed(pipeline: Pipeline) -> set[tuple[int, int]]:
    """From which host to which a pipeline sends, either way."""
    ends = [(a.hosts[0], b.hosts[0]) for a, b in itertools.pairwise(pipeline.stages)]
    return {pair for a, b in ends if a != b for pair in ((a, b), (b, a))}


def _holder(pipeline: Pipeline, layer: int) -> int:
    """The host of the device that holds a layer."""
    return next(stage.hosts[0] for stage in pipeline.stages if stage.first <= layer <= stage.last)
