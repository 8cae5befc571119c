"""The task that all strategies answer, and the truth that all answers are priced by."""

from __future__ import annotations

import dataclasses
import itertools
import math
import types
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import final

from alpa_dejavu.clusters.space import divisors
from alpa_dejavu.costs.communication import Group
from alpa_dejavu.costs.memory_margin import UNMEASURED, MemoryMargin
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.stage_costs import COST_KINDS, StageCostModel
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.planning.rivals._exchange import Computed, GradientExchange, exchanges, finished_s
from alpa_dejavu.planning.rivals.stages import Pipeline, PlacedStage, sent_at_a_time
from alpa_dejavu.planning.search._stage_times import timeline_of
from alpa_dejavu.problem import Cluster, Model, Run, checks
from alpa_dejavu.simulation.step import StageTimes

_ALONE: Mapping[tuple[int, int], int] = types.MappingProxyType({})


@final
@dataclasses.dataclass(frozen=True, eq=False)
class StrategyTask:
    """The task that a strategy is given: to divide a model's training step among the devices of a cluster.

    Its fields are the arguments of `Strategy.plan`. Raises ValueError for a model that isn't trained, numbers below
    one, and micro-batches that don't divide the batch.
    """

    model: Model
    samples: int
    cluster: Cluster
    batch: int
    models: CostModels
    micro_batches: int | None = None
    margin: MemoryMargin = UNMEASURED
    _costs: dict[int, StageCostModel] = dataclasses.field(default_factory=dict, init=False, repr=False)
    _computations: dict[object, Computed] = dataclasses.field(default_factory=dict, init=False, repr=False)

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

    @property
    def in_parts(self) -> str:
        """Returns the required number of micro-batches as a phrase for error messages; empty where none is required."""
        return "" if self.micro_batches is None else f" in {self.micro_batches} micro-batches"

    def cuts(self, share: int) -> list[int]:
        """Returns the sizes of micro-batch, in samples, that divide a replica's share of the batch, ascending."""
        return [size for size in divisors(share) if self.micro_batches in (None, share // size)]

    def stage_costs(self, micro_batch: int) -> StageCostModel:
        """Returns the costs of stages for micro-batches of so many samples."""
        if micro_batch not in self._costs:
            model = with_micro_batch(self.model, micro_batch / self.samples)
            self._costs[micro_batch] = StageCostModel(model, self.cluster, self.models)
        return self._costs[micro_batch]

    def stage_times(
        self, stages: Sequence[PlacedStage], micro_batch: int, at_a_time: Mapping[tuple[int, int], int] = _ALONE
    ) -> tuple[StageTimes, ...]:
        """Returns the seconds and bytes of a pipeline's stages; `at_a_time` says for pairs of hosts how many pipelines
        send from the one to the other and so share the link; 1 where it says nothing.
        """
        transfer = self.stage_costs(micro_batch).interstage
        pairs = itertools.pairwise(stages)
        sent = [transfer.between(after.first, before.hosts, after.hosts, at_a_time) for before, after in pairs]
        ends = zip([*sent, (0.0, 0.0)], [(0.0, 0.0), *sent], strict=True)
        return tuple(
            self._stage_times(stage, micro_batch, ahead, back)
            for stage, ((ahead, _), (_, back)) in zip(stages, ends, strict=True)
        )

    def _stage_times(self, stage: PlacedStage, micro_batch: int, ahead_s: float, back_s: float) -> StageTimes:
        costs, layers = self.stage_costs(micro_batch), (stage.first, stage.last)
        seconds = costs.seconds(costs.places.on(stage.hosts), stage.config)[:, stage.first, stage.last].tolist()
        by_kind, memory = dict(zip(COST_KINDS, seconds, strict=True)), costs.memory(stage.config)
        forward, backward = by_kind["collective_forward_s"], by_kind["collective_backward_s"]
        return StageTimes(
            forward_s=by_kind["compute_forward_s"] + forward,
            backward_s=by_kind["compute_backward_s"] + backward,
            per_step_s=by_kind["update_s"] + by_kind["synchronisation_s"],
            forward_send_s=ahead_s,
            backward_send_s=back_s,
            forward_collective_s=forward,
            backward_collective_s=backward,
            synchronisation_s=by_kind["synchronisation_s"],
            activation_bytes=float(memory.per_micro_batch[layers]),
            resident_bytes=float(memory.resident[layers]),
            temporary_bytes=float(memory.temporary[layers]),
            memory_limit_bytes=min(self.cluster.hosts[host].device.memory_bytes for host in stage.hosts),
            devices=len(stage.hosts),
            apart=self.cluster.apart(len(set(stage.hosts))),
        )

    def step_s(self, pipeline: Pipeline) -> float:
        """Returns the seconds of a step of one pipeline, simulated in 1F1B order."""
        times = self.stage_times(pipeline.stages, pipeline.micro_batch)
        return timeline_of(times, self.cluster, Run(pipeline.num_micro_batches)).step_s

    def fits(self, pipeline: Pipeline) -> bool:
        """Returns whether each stage of a pipeline has the memory for the micro-batches that it holds in flight."""
        times, run = self.stage_times(pipeline.stages, pipeline.micro_batch), Run(pipeline.num_micro_batches)
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
        """Returns the seconds of a step of data-parallel pipelines of the whole model; one pipeline takes its `step_s`.

        The gradients of a range of layers are summed among all devices that hold it, once all have computed theirs: the
        last layers first. Only then does a stage send its last gradients to the one before, and update. Pipelines that
        send between the same hosts share the link, as if they always sent at the same time, and so do sums of
        gradients. Stages with ZeRO are taken as without. Raises ValueError for several pipelines on devices that share
        one CPU.
        """
        if len(pipelines) == 1:
            return self.step_s(pipelines[0])
        if self.cluster.shared:
            raise ValueError(
                f"pipelines: there are {len(pipelines)}, but must be one where devices share the cores of a CPU, as "
                f"those of {self.cluster.name} do; give one pipeline, or devices with cores of their own"
            )
        sums, micro_batch = exchanges(pipelines), pipelines[0].micro_batch
        seconds = [self._summed_s(exchange, micro_batch, exchange.abreast(sums)) for exchange in sums]
        return finished_s(self._all_computed(pipelines), sums, seconds)

    def _summed_s(self, exchange: GradientExchange, micro_batch: int, abreast: int) -> float:
        """Returns the seconds of an all-reduce of as many groups as the narrowest replica has, and `abreast`."""
        narrowest = min(map(len, exchange.replicas))
        group = Group(self.cluster, tuple(hosts[0] for hosts in exchange.replicas), narrowest + abreast)
        num_bytes = self.stage_costs(micro_batch).gradient_bytes[exchange.layers] / narrowest
        return float(
            self.models.runtime.sent_s(self.models.communication.seconds("all_reduce", num_bytes, group), "step")
        )

    def computing_s(self, pipelines: Sequence[Pipeline]) -> tuple[float, ...]:
        """Returns the seconds in which each pipeline computes its micro-batches, without what it does once a step."""
        return tuple(computed.computing_s for computed in self._all_computed(pipelines))

    def _all_computed(self, pipelines: Sequence[Pipeline]) -> list[Computed]:
        at_a_time = {pair: count for pair, count in sent_at_a_time(pipelines).items() if count > 1}
        shared, computed = tuple(sorted(at_a_time.items())), []
        for pipeline in pipelines:
            if (pipeline, shared) not in self._computations:
                times = self.stage_times(pipeline.stages, pipeline.micro_batch, at_a_time)
                passes = [dataclasses.replace(stage, per_step_s=0.0, synchronisation_s=0.0) for stage in times]
                timeline = timeline_of(passes, self.cluster, Run(pipeline.num_micro_batches))
                update_s = [stage.per_step_s - stage.synchronisation_s for stage in times]
                self._computations[pipeline, shared] = Computed.of(timeline, update_s)
            computed.append(self._computations[pipeline, shared])
        return computed

    def steady_s(self, pipelines: Sequence[Pipeline], staleness: int) -> float:
        """Returns the seconds of a step of pipelines that are never emptied, and share parameters by HetPipe's waves:
        the slowest sets the pace. Those that send between the same hosts share the link, as if always at the same time.
        """
        paces, at_a_time = [], sent_at_a_time(pipelines)
        for pipeline in pipelines:
            times, count = (
                self.stage_times(pipeline.stages, pipeline.micro_batch, at_a_time),
                pipeline.num_micro_batches,
            )
            once, twice = (timeline_of(times, self.cluster, Run(number)).step_s for number in (count, 2 * count))
            updates_s = math.ceil(count / len(times)) * max(stage.per_step_s for stage in times)
            paces.append(twice - once + updates_s)
        return self.with_waves_s(pipelines, max(paces), staleness)

    def with_waves_s(self, pipelines: Sequence[Pipeline], pace_s: float, staleness: int) -> float:
        """Returns the seconds of a step that computes for `pace_s` and sums up the gradients of each wave: as many
        micro-batches as a pipeline has stages, single devices. With staleness 0 all wait for the slowest stage's sum,
        else it overlaps with computing.
        """
        longest = max(len(pipeline.stages) for pipeline in pipelines)
        totals, costs = defaultdict[tuple[int, int], float](float), self.stage_costs(pipelines[0].micro_batch)
        for exchange in exchanges(pipelines):
            group = Group(self.cluster, tuple(hosts[0] for hosts in exchange.replicas), longest)
            num_bytes = costs.gradient_bytes[exchange.layers]
            seconds = float(self.models.communication.seconds("all_reduce", num_bytes, group))
            for holder in enumerate(exchange.holders):
                totals[holder] += seconds
        waves = max(math.ceil(pipeline.num_micro_batches / len(pipeline.stages)) for pipeline in pipelines)
        shared_s = waves * max(totals.values())
        return pace_s + shared_s if staleness == 0 else max(pace_s, shared_s)
