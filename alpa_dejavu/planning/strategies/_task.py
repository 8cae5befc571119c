"""The task that all strategies answer, and the truth that all answers are priced by."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import types
from collections.abc import Mapping, Sequence
from typing import final

from alpa_dejavu.costs.communication import Group
from alpa_dejavu.costs.cost_models import CostModels
from alpa_dejavu.costs.memory_margin import UNMEASURED, MemoryMargin
from alpa_dejavu.costs.stage_costs import COST_KINDS, StageCostModel
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.planning._stage_times import timeline_of
from alpa_dejavu.planning.strategies._divide import divisors
from alpa_dejavu.planning.strategies.stages import Pipeline, PlacedStage, config_of
from alpa_dejavu.problem import Cluster, Model, Run, checks
from alpa_dejavu.simulation.step import StageTimes

__all__ = ["Task"]

_ALONE: Mapping[tuple[int, int], int] = types.MappingProxyType({})


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """The task that a strategy is given: to divide a model's training step among the devices of a cluster.

    Attributes:
        model: the model's layers, for a micro-batch of `samples` samples.
        samples: the samples of that micro-batch.
        cluster: the hosts, and the links between them.
        batch: samples of a step.
        models: the latency and communication models by which plans are priced.
        micro_batches: the number of micro-batches that a pipeline must have; None: the strategy chooses.
        margin: the rule for how much of each device's memory is left free.

    Raises ValueError for a model that isn't trained, numbers below one, and micro-batches that don't divide the batch.
    """

    model: Model
    samples: int
    cluster: Cluster
    batch: int
    models: CostModels
    micro_batches: int | None = None
    margin: MemoryMargin = UNMEASURED
    _costs: dict[int, StageCostModel] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        checks.positive("strategy", "samples", self.samples)
        checks.positive("strategy", "batch", self.batch)
        if self.micro_batches is not None:
            checks.positive("strategy", "micro_batches", self.micro_batches)
            if self.batch % self.micro_batches:
                raise ValueError(
                    f"strategy: {self.micro_batches} micro-batches don't divide a batch of {self.batch}; give a divisor"
                )
        if not self.model.training:
            raise ValueError("strategy: the model isn't trained; these strategies are for training steps alone")

    def of(self, micro_batch: int) -> Model:
        """Returns the model for micro-batches of another size, in samples."""
        return with_micro_batch(self.model, micro_batch / self.samples)

    @property
    def in_parts(self) -> str:
        """Returns the required number of micro-batches as a phrase for error messages; empty where none is required."""
        return "" if self.micro_batches is None else f" in {self.micro_batches} micro-batches"

    def cuts(self, share: int) -> list[int]:
        """Returns the sizes of micro-batch, in samples, that divide a replica's share of the batch, ascending."""
        return [each for each in divisors(share) if self.micro_batches in (None, share // each)]

    def stage_costs(self, micro_batch: int) -> StageCostModel:
        """Returns the cost model of the model's stages, for micro-batches of so many samples."""
        if micro_batch not in self._costs:
            self._costs[micro_batch] = StageCostModel(self.of(micro_batch), self.cluster, self.models)
        return self._costs[micro_batch]

    def stage_times(
        self, stages: Sequence[PlacedStage], micro_batch: int, at_a_time: Mapping[tuple[int, int], int] = _ALONE
    ) -> tuple[StageTimes, ...]:
        """Returns the seconds and bytes of a pipeline's stages on the devices that they are on, for the simulation of a
        step.

        Args:
            stages: the pipeline's stages.
            micro_batch: samples of a micro-batch.
            at_a_time: for pairs of hosts, how many pipelines send from the one to the other and so share the link;
                pairs that are missing count as one.
        """
        transfer = self.stage_costs(micro_batch).interstage
        pairs = itertools.pairwise(stages)
        sent = [transfer.between(after.first, before.hosts, after.hosts, at_a_time) for before, after in pairs]
        ends = zip([*sent, (0.0, 0.0)], [(0.0, 0.0), *sent], strict=True)
        return tuple(
            dataclasses.replace(self._alone(stage, micro_batch), forward_send_s=ahead, backward_send_s=back)
            for stage, ((ahead, _), (_, back)) in zip(stages, ends, strict=True)
        )

    def _alone(self, stage: PlacedStage, micro_batch: int) -> StageTimes:
        """Returns the times of a stage without what it sends to others."""
        costs, where = self.stage_costs(micro_batch), (stage.first, stage.last)
        took = self._seconds(self.slowest(stage, micro_batch), micro_batch)
        if stage.widths:
            took["synchronisation_s"] = self._exchanged_s(stage, micro_batch)
        forward, backward = took["collective_forward_s"], took["collective_backward_s"]
        memory = costs.memory(stage.config)
        return StageTimes(
            forward_s=took["compute_forward_s"] + forward,
            backward_s=took["compute_backward_s"] + backward,
            per_step_s=took["update_s"] + took["synchronisation_s"],
            forward_send_s=0.0,
            backward_send_s=0.0,
            forward_collective_s=forward,
            backward_collective_s=backward,
            synchronisation_s=took["synchronisation_s"],
            activation_bytes=float(memory.per_micro_batch[where]),
            resident_bytes=float(memory.resident[where]),
            temporary_bytes=float(memory.temporary[where]),
            memory_limit_bytes=min(self.cluster.hosts[host].device.memory_bytes for host in stage.hosts),
            devices=len(stage.hosts),
        )

    def slowest(self, stage: PlacedStage, micro_batch: int) -> PlacedStage:
        """Returns a stage whose data-parallel replicas are all like the slowest one of a stage with unlike replicas;
        any other stage as it is.
        """
        if not stage.widths:
            return stage
        across = len(stage.widths)
        alike = [
            PlacedStage(stage.first, stage.last, across * hosts, config_of(across, len(hosts)))
            for hosts in dict.fromkeys(stage.replicas)
        ]
        return max(alike, key=lambda one: sum(list(self._seconds(one, micro_batch).values())[:4]))

    def _seconds(self, stage: PlacedStage, micro_batch: int) -> dict[str, float]:
        costs = self.stage_costs(micro_batch)
        seconds = costs.seconds(costs.places.on(stage.hosts), stage.config)[:, stage.first, stage.last]
        return dict(zip(COST_KINDS, seconds.tolist(), strict=True))

    def _exchanged_s(self, stage: PlacedStage, micro_batch: int) -> float:
        """Returns the seconds of the all-reduce of gradients among unlike replicas: as many groups as the narrowest has
        devices go at a time, over the links between the replicas' hosts.
        """
        narrowest = min(stage.widths)
        group = Group(self.cluster, tuple(hosts[0] for hosts in stage.replicas), narrowest)
        num_bytes = self.stage_costs(micro_batch).gradient_bytes[stage.first, stage.last] / narrowest
        alone = self.models.communication.seconds("all_reduce", num_bytes, group)
        return float(self.models.runtime.sent_s(alone, "step"))

    def step_s(self, pipeline: Pipeline) -> float:
        """Returns the seconds of a step of one pipeline, simulated in 1F1B order."""
        return self._simulated(self._times(pipeline), pipeline.num_micro_batches)

    def fits(self, pipeline: Pipeline) -> bool:
        """Returns whether each stage of a pipeline has the memory for the micro-batches that it holds in flight."""
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
        """Returns the seconds of a step of several data-parallel pipelines that are never emptied, and share parameters
        by waves.

        A wave is as many micro-batches as a pipeline has stages. No pipeline can be more than `staleness` waves ahead
        of another, so in the long run the slowest sets the pace. After each wave the devices that hold a layer add up
        its gradients: with staleness 0 they wait for that, else it overlaps with computing. Pipelines that send from
        one host to the same other one share the link, as if they always sent at the same time.
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
        """Returns the seconds in which data-parallel pipelines sum up their gradients once: those of the slowest stage,
        as all stages do so at the same time.
        """
        bytes_of = self.stage_costs(pipelines[0].micro_batch).gradient_bytes
        at_a_time = max(len(pipeline.stages) for pipeline in pipelines)
        cuts = sorted({stage.first for pipeline in pipelines for stage in pipeline.stages})
        slowest = 0.0
        for pipeline in pipelines:
            for stage in pipeline.stages:
                total = 0.0
                for first, end in zip(cuts, [*cuts[1:], self.model.num_layers], strict=True):
                    if stage.first <= first <= stage.last:
                        hosts = tuple(_holder(other, first) for other in pipelines)
                        group = Group(self.cluster, hosts, at_a_time)
                        total += float(self.models.communication.seconds("all_reduce", bytes_of[first, end - 1], group))
                slowest = max(slowest, total)
        return slowest

    def _times(self, pipeline: Pipeline, at_a_time: Mapping[tuple[int, int], int] = _ALONE) -> tuple[StageTimes, ...]:
        return self.stage_times(pipeline.stages, pipeline.micro_batch, at_a_time)

    def _simulated(self, times: tuple[StageTimes, ...], num_micro_batches: int) -> float:
        return timeline_of(times, self.cluster, Run(num_micro_batches)).step_s


def _crossed(pipeline: Pipeline) -> set[tuple[int, int]]:
    """Returns the pairs of hosts from one to the other of which a pipeline sends, either way."""
    ends = [(a.hosts[0], b.hosts[0]) for a, b in itertools.pairwise(pipeline.stages)]
    return {pair for a, b in ends if a != b for pair in ((a, b), (b, a))}


def _holder(pipeline: Pipeline, layer: int) -> int:
    """Returns the host of the device that holds a layer."""
    return next(stage.hosts[0] for stage in pipeline.stages if stage.first <= layer <= stage.last)
