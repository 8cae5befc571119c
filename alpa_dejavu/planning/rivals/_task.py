"""The task that all strategies answer, and the truth that all answers are priced by."""

from __future__ import annotations

import dataclasses
import itertools
import types
from collections.abc import Mapping, Sequence
from typing import final

from alpa_dejavu.costs.communication import Group
from alpa_dejavu.costs.memory_margin import UNMEASURED, MemoryMargin
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.stage_costs import COST_KINDS, StageCostModel
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.planning.rivals._divide import divisors
from alpa_dejavu.planning.rivals._exchange import Computed, exchanges, finished_s
from alpa_dejavu.planning.rivals.stages import Pipeline, PlacedStage, config_of, sent_at_a_time
from alpa_dejavu.planning.search._stage_times import timeline_of
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
    _known: dict[object, Computed] = dataclasses.field(default_factory=dict, init=False, repr=False)

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
        return with_micro_batch(self.model, micro_batch / self.samples)

    @property
    def in_parts(self) -> str:
        """Returns the required number of micro-batches as a phrase for error messages; empty where none is required."""
        return "" if self.micro_batches is None else f" in {self.micro_batches} micro-batches"

    def cuts(self, share: int) -> list[int]:
        """Returns the sizes of micro-batch, in samples, that divide a replica's share of the batch, ascending."""
        return [each for each in divisors(share) if self.micro_batches in (None, share // each)]

    def stage_costs(self, micro_batch: int) -> StageCostModel:
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
            apart=self.cluster.apart(len(set(stage.hosts))),
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
        return self._summed_s((stage.first, stage.last), stage.replicas, micro_batch)

    def _summed_s(
        self, layers: tuple[int, int], replicas: Sequence[tuple[int, ...]], micro_batch: int, abreast: int = 0
    ) -> float:
        """Returns the seconds of the all-reduce of the gradients of a range of layers among replicas on these hosts.

        As many groups as the narrowest replica has devices go at a time, and with them `abreast` others on the same
        links.
        """
        narrowest = min(map(len, replicas))
        group = Group(self.cluster, tuple(hosts[0] for hosts in replicas), narrowest + abreast)
        num_bytes = self.stage_costs(micro_batch).gradient_bytes[layers] / narrowest
        alone = self.models.communication.seconds("all_reduce", num_bytes, group)
        return float(self.models.runtime.sent_s(alone, "step"))

    def step_s(self, pipeline: Pipeline) -> float:
        """Returns the seconds of a step of one pipeline, simulated in 1F1B order."""
        return timeline_of(self._times(pipeline), self.cluster, Run(pipeline.num_micro_batches)).step_s

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

    def synchronous_s(self, pipelines: Sequence[Pipeline]) -> float:
        """Returns the seconds of a step of data-parallel pipelines of the whole model, which may have unlike stages and
        numbers of micro-batches; one pipeline takes its `step_s`.

        Each is simulated with its own micro-batches. The gradients of a range of layers are summed among all devices
        that hold it, in all pipelines, once all of them have computed theirs: the last layers first. Only then does a
        stage send its last gradients to the one before, as in one pipeline, and update. Pipelines that send from one
        host to the same other one share the link, as if they always sent at the same time, and so do sums of gradients.
        Stages with ZeRO are taken as without.

        Raises:
            ValueError: there are several pipelines, and the cluster's devices share the cores of one CPU.
        """
        if len(pipelines) == 1:
            return self.step_s(pipelines[0])
        if self.cluster.shared:
            raise ValueError(
                f"pipelines: there are {len(pipelines)}, but must be one where devices share the cores of a CPU, as "
                f"those of {self.cluster.name} do; give one pipeline, or devices with cores of their own"
            )
        computed, sums, micro_batch = self._all_computed(pipelines), exchanges(pipelines), pipelines[0].micro_batch
        seconds = [
            self._summed_s((one.first, one.last), one.replicas(pipelines), micro_batch, one.abreast(sums, pipelines))
            for one in sums
        ]
        return finished_s(computed, sums, seconds)

    def computing_s(self, pipelines: Sequence[Pipeline]) -> tuple[float, ...]:
        """Returns the seconds in which each of several pipelines computes its micro-batches, without what it does once
        a step: summing up gradients, and the update.
        """
        return tuple(one.computing_s for one in self._all_computed(pipelines))

    def _all_computed(self, pipelines: Sequence[Pipeline]) -> list[Computed]:
        at_a_time = {pair: count for pair, count in sent_at_a_time(pipelines).items() if count > 1}
        return [self._computed(pipeline, at_a_time) for pipeline in pipelines]

    def _computed(self, pipeline: Pipeline, at_a_time: Mapping[tuple[int, int], int]) -> Computed:
        key = pipeline, tuple(sorted(at_a_time.items()))
        if key not in self._known:
            times = self._times(pipeline, at_a_time)
            passes = [dataclasses.replace(stage, per_step_s=0.0, synchronisation_s=0.0) for stage in times]
            timeline = timeline_of(passes, self.cluster, Run(pipeline.num_micro_batches))
            self._known[key] = Computed.of(timeline, [one.per_step_s - one.synchronisation_s for one in times])
        return self._known[key]

    def _times(self, pipeline: Pipeline, at_a_time: Mapping[tuple[int, int], int] = _ALONE) -> tuple[StageTimes, ...]:
        return self.stage_times(pipeline.stages, pipeline.micro_batch, at_a_time)
