"""A strategy in the place of the search: its answers as candidates like any other, costed as ours are."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import final

from alpa_dejavu._util import units
from alpa_dejavu._util.ties import ordered
from alpa_dejavu.calibration import Prices
from alpa_dejavu.costs.communication import CommunicationModel
from alpa_dejavu.costs.latency import LatencyModel
from alpa_dejavu.costs.memory_margin import UNMEASURED, MemoryMargin
from alpa_dejavu.costs.runtime import ALPA, CostModels, RuntimeProfile
from alpa_dejavu.planning.planner import plan
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.planning.rivals._base import Strategy, StrategyPlan, UnlikePipelinesError
from alpa_dejavu.planning.rivals.stages import Pipeline, PlacedStage, as_one, cut_alike
from alpa_dejavu.planning.search._candidate import Candidate
from alpa_dejavu.planning.search.given_stages import GivenStage, given_candidate
from alpa_dejavu.planning.search.models.model_source import GivenModel
from alpa_dejavu.planning.task import Chooser, Clock, Found, PlanningTask
from alpa_dejavu.problem import Cluster, Model, NoPlanError, Run, Submesh


@final
@dataclasses.dataclass(frozen=True)
class ByStrategy(Chooser):
    """A chooser that takes a strategy's plan, with the number of layers for which it is fastest. If the planning task
    allows several numbers of micro-batches, the strategy chooses any; if only one, it has to take that.
    """

    strategy: Strategy

    def choose(self, task: PlanningTask, clock: Clock) -> Found:
        """Returns the strategy's plans for each number of layers, the fastest first.

        Raises NoPlanError if it finds none that fits, UnlikePipelinesError if the fastest plan has unlike pipelines,
        and ValueError if it can't handle the task.
        """
        planned, unlike = list[tuple[StrategyPlan, Candidate]](), list[UnlikePipelinesError]()
        nothing = list[NoPlanError]()
        for layers in task.layers:
            try:
                planned.append(self._planned(task, layers))
            except UnlikePipelinesError as error:
                unlike.append(error)
            except NoPlanError as error:
                nothing.append(error)
            clock.lap("strategy")
        if not planned and not unlike:
            raise nothing[0]
        planned = ordered(planned, key=lambda pair: pair[1].step_s)
        unlike = ordered(unlike, key=lambda error: error.plan.step_s)
        if unlike and not (planned and planned[0][1].step_s <= unlike[0].plan.step_s):
            raise unlike[0]
        return _found(planned[0][0], [candidate for _, candidate in planned])

    def again(self, task: PlanningTask, candidates: Sequence[Candidate], clock: Clock) -> list[Candidate]:
        """Returns the strategy's plan on the task's cluster, with the first candidate's layers; none if unlike."""
        try:
            return [self._planned(task, candidates[0].model.num_layers)[1]]
        except UnlikePipelinesError:
            return []

    def _planned(self, task: PlanningTask, layers: int) -> tuple[StrategyPlan, Candidate]:
        assert task.batch is not None, "a strategy is asked for a batch"
        count = task.micro_batches[0] if len(task.micro_batches) == 1 else None
        samples = task.micro_batch(count or task.micro_batches[len(task.micro_batches) // 2])
        models = task.prices.models
        answer = self.strategy.plan(
            task.source.exact(layers, samples), task.cluster, task.batch, samples=samples, micro_batches=count,
            latency=models.latency, communication=models.communication, runtime=models.runtime, margin=task.margin,
        )  # fmt: skip
        return answer, _candidate(task, answer)


@final
@dataclasses.dataclass(frozen=True)
class _Answered(Chooser):
    """A chooser of the plan that a strategy has already answered with."""

    answer: StrategyPlan

    def choose(self, task: PlanningTask, clock: Clock) -> Found:
        return _found(self.answer, [_candidate(task, self.answer)])


def as_planned(
    answer: StrategyPlan,
    model: Model,
    cluster: Cluster,
    *,
    samples: int = 1,
    name: str = "",
    latency: str | LatencyModel = "analytic",
    communication: str | CommunicationModel = "alpha-beta",
    runtime: str | RuntimeProfile = ALPA,
    margin: MemoryMargin = UNMEASURED,
) -> PlanningResult:
    """Returns a strategy's answer as a planning result, its stages costed as those of any other plan; the arguments are
    those of `Strategy.plan`. A step that Alpa can't run takes `StrategyPlan.step_s`, its timeline is of synchronous
    steps.

    Raises UnlikePipelinesError for pipelines that aren't alike, ValueError for devices that make no mesh, and
    NoPlanError if a stage doesn't fit into memory.
    """
    task = PlanningTask(
        source=GivenModel(model, samples, name),
        prices=Prices(cluster, CostModels.named(latency, communication, runtime)),
        batch=answer.batch,
        layers=(model.num_layers,),
        micro_batches=(_whole_pipeline(answer, cluster).num_micro_batches,),
        chooser=_Answered(answer),
        margin=margin,
    )
    return plan(task, annotations=())


def _found(answer: StrategyPlan, candidates: list[Candidate]) -> Found:
    own = "" if answer.own_s is None else f", and reckons with {units.seconds(answer.own_s)} a step itself"
    note = f"chosen by {answer.strategy}, which compared {answer.tried} plans{own}"
    return Found(candidates, (note, *answer.notes), answer.strategy, answer.runs_on_alpa)


def _candidate(task: PlanningTask, answer: StrategyPlan) -> Candidate:
    """Returns the strategy's stages, costed at their own micro-batch."""
    pipeline = _whole_pipeline(answer, task.cluster)
    stages = [_given_stage(answer.strategy, n, stage, task.cluster) for n, stage in enumerate(pipeline.stages)]
    scaled = task.source.exact if task.source.traces else task.source.scaled
    model = scaled(stages[-1].last + 1, pipeline.micro_batch)
    candidate = given_candidate(task, model, Run(pipeline.num_micro_batches), stages)
    left = task.prices.models.runtime.hosts(candidate.cluster.hosts)
    for n, (stage, numbers) in enumerate(zip(candidate.times, candidate.placed, strict=True)):
        in_flight, hosts = candidate.run.in_flight(len(stages) - 1 - n), [left[number] for number in numbers]
        kept = stage.activation_bytes * in_flight
        counted = {"resident": stage.resident_bytes, "per_micro_batch": kept, "temporary": stage.temporary_bytes}
        if not task.margin.fits(counted, hosts):
            usable = units.size(min(map(task.margin.usable_bytes, hosts)))
            raise NoPlanError(
                f"{answer.strategy} has no plan that fits: in the best it knows, stage {n} needs "
                f"{units.size(sum(counted.values()))} of each device, of which {usable} may be used; give more hosts, "
                "another batch or another strategy"
            )
    if answer.runs_on_alpa:
        return candidate
    return dataclasses.replace(candidate, simulated_s=answer.step_s)


def _whole_pipeline(answer: StrategyPlan, cluster: Cluster) -> Pipeline:
    """Returns the one pipeline, or pipelines that are cut alike as one whose stages are data-parallel."""
    if len(answer.pipelines) > 1 and not cut_alike(answer.pipelines):
        raise UnlikePipelinesError(answer, cluster)
    return answer.pipelines[0] if len(answer.pipelines) == 1 else as_one(answer.pipelines)


def _given_stage(strategy: str, n: int, stage: PlacedStage, cluster: Cluster) -> GivenStage:
    devices = Counter(cluster.hosts[host].name for host in stage.hosts)
    if not stage.is_submesh:
        raise ValueError(
            f"{strategy}: its stage {n} is on {dict(devices)} devices, but Alpa's meshes have equally many of each of "
            "their hosts; plan for other hosts or another batch, or choose another strategy"
        )
    submesh = Submesh(len(devices), len(stage.hosts) // len(devices))
    return GivenStage(stage.first, stage.last, submesh, stage.config, tuple(devices))
