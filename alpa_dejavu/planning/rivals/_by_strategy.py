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
from alpa_dejavu.planning.result import PlanningResult, UnlikePipelinesError
from alpa_dejavu.planning.rivals._base import Strategy, StrategyPlan
from alpa_dejavu.planning.rivals.stages import Pipeline, PlacedStage, as_one, cut_alike
from alpa_dejavu.planning.search._candidate import Candidate
from alpa_dejavu.planning.search.given_stages import GivenStage, given_candidate
from alpa_dejavu.planning.search.models.model_source import GivenModel
from alpa_dejavu.planning.task import Chooser, Clock, Found, PlanningTask
from alpa_dejavu.problem import Cluster, Host, Model, NoPlanError, Run, Submesh

__all__ = ["ByStrategy", "as_planned"]


@final
@dataclasses.dataclass(frozen=True)
class ByStrategy(Chooser):
    """A chooser that takes the plan of a strategy (a planner such as AMP), with the number of layers for which that
    plan is fastest.

    If the planning task allows several numbers of micro-batches, the strategy chooses any number itself; if it allows
    only one, the strategy has to take that.

    Attributes:
        strategy: the strategy that plans.
    """

    strategy: Strategy

    def choose(self, task: PlanningTask, clock: Clock) -> Found:
        """Returns the strategy's plans for each number of layers, the fastest first.

        Raises:
            NoPlanError: the strategy finds no plan, or its plan doesn't fit into memory.
            UnlikePipelinesError: the fastest plan has several pipelines that aren't alike.
            ValueError: the strategy can't handle the model, the batch or the cluster.
        """
        found, unlike = list[tuple[StrategyPlan, Candidate]](), list[UnlikePipelinesError]()
        nothing = list[NoPlanError]()
        for layers in task.layers:
            try:
                found.append(self._planned(task, layers))
            except UnlikePipelinesError as error:
                unlike.append(error)
            except NoPlanError as error:
                nothing.append(error)
            clock.lap("strategy")
        if not found and not unlike:
            raise nothing[0]
        found = ordered(found, key=lambda one: one[1].step_s)
        unlike = ordered(unlike, key=lambda one: one.made.step_s)
        if unlike and not (found and found[0][1].step_s <= unlike[0].made.step_s):
            raise unlike[0]
        return _found(found[0][0], [candidate for _, candidate in found])

    def again(self, task: PlanningTask, found: Sequence[Candidate], clock: Clock) -> Candidate | None:
        """Returns the strategy's plan on another cluster (the task's), with as many layers as the first of the plans
        already found; None if it has several pipelines that aren't alike.
        """
        try:
            return self._planned(task, found[0].model.num_layers)[1]
        except UnlikePipelinesError:
            return None

    def _planned(self, task: PlanningTask, layers: int) -> tuple[StrategyPlan, Candidate]:
        assert task.batch is not None, "a strategy is asked for a batch"
        count = task.micro_batches[0] if len(task.micro_batches) == 1 else None
        samples = task.micro_batch(count or task.micro_batches[len(task.micro_batches) // 2])
        model = task.source.exact(layers, samples)
        made = self.strategy.plan(
            model, task.cluster, task.batch, samples=samples, micro_batches=count, latency=task.prices.models.latency,
            communication=task.prices.models.communication, runtime=task.prices.models.runtime, margin=task.margin,
        )  # fmt: skip
        return made, _candidate(task, made)


@final
@dataclasses.dataclass(frozen=True)
class _Made(Chooser):
    """A strategy's plan that is there already."""

    made: StrategyPlan

    def choose(self, task: PlanningTask, clock: Clock) -> Found:
        return _found(self.made, [_candidate(task, self.made)])

    def again(self, task: PlanningTask, found: Sequence[Candidate], clock: Clock) -> None:
        return None


def as_planned(
    made: StrategyPlan,
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
    """Returns the plan that a strategy (a planner such as AMP) has made as a planning result, its stages costed as the
    stages of any other plan.

    The step of a plan that Alpa can run takes as long as a simulation of its stages says. The step of one that it can't
    run takes as long as `StrategyPlan.step_s` says; its stages and timeline are those of the same division with
    synchronous steps.

    Args:
        made: the plan that the strategy has made.
        model: the layers that the strategy was given, for a micro-batch of `samples` samples.
        cluster: the cluster that the plan is for.
        samples: the samples of that micro-batch.
        name: the model's name.
        latency: a latency model or its name.
        communication: a communication model or its name.
        runtime: a runtime profile or its name.
        margin: the rule for how much of each device's memory is left free.

    Raises:
        UnlikePipelinesError: the plan has several pipelines that aren't alike.
        ValueError: a stage is on devices that make no mesh; says which.
        NoPlanError: a stage doesn't fit into memory.
    """
    task = PlanningTask(
        source=GivenModel(model, samples, name),
        prices=Prices(cluster, CostModels.named(latency, communication, runtime)),
        batch=made.batch,
        layers=(model.num_layers,),
        micro_batches=(_whole_pipeline(made, cluster).num_micro_batches,),
        chooser=_Made(made),
        margin=margin,
    )
    return plan(task, annotations=())


def _found(made: StrategyPlan, candidates: list[Candidate]) -> Found:
    return Found(candidates, (_said(made), *made.notes), made.strategy, made.runs_on_alpa)


def _candidate(task: PlanningTask, made: StrategyPlan) -> Candidate:
    """The strategy's stages, costed at their own micro-batch."""
    pipeline = _whole_pipeline(made, task.cluster)
    stages = [_given(made.strategy, n, stage, task.cluster) for n, stage in enumerate(pipeline.stages)]
    layers = stages[-1].last + 1
    source = task.source
    model = (source.exact if source.traces else source.scaled)(layers, pipeline.micro_batch)
    found = given_candidate(task, model, Run(pipeline.num_micro_batches), stages)
    _check_memory(made.strategy, found, task.prices.models.runtime.hosts(found.cluster), task.margin)
    if made.runs_on_alpa:
        return found
    assert found.timeline is not None, "it was simulated"
    return dataclasses.replace(found, timeline=dataclasses.replace(found.timeline, step_s=made.step_s))


def _whole_pipeline(made: StrategyPlan, cluster: Cluster) -> Pipeline:
    """The one pipeline, or pipelines that are cut alike as one whose stages are data-parallel.

    Raises:
        UnlikePipelinesError: they aren't cut alike.
    """
    if len(made.pipelines) == 1:
        return made.pipelines[0]
    if not cut_alike(made.pipelines):
        raise UnlikePipelinesError(made, cluster)
    return as_one(made.pipelines)


def _given(strategy: str, n: int, stage: PlacedStage, cluster: Cluster) -> GivenStage:
    taken = Counter(cluster.hosts[host].name for host in stage.hosts)
    if not stage.is_submesh:
        raise ValueError(
            f"{strategy}: its stage {n} is on {dict(taken)} devices, but Alpa's meshes have equally many of each of "
            "their hosts; plan for other hosts or another batch, or choose another strategy"
        )
    submesh = Submesh(len(taken), len(stage.hosts) // len(taken))
    return GivenStage(stage.first, stage.last, submesh, stage.config, tuple(taken))


def _said(made: StrategyPlan) -> str:
    own = "" if made.own_s is None else f", and reckons with {units.seconds(made.own_s)} a step itself"
    return f"chosen by {made.strategy}, which compared {made.tried} plans{own}"


def _check_memory(strategy: str, found: Candidate, left: Sequence[Host], margin: MemoryMargin) -> None:
    assert found.timeline is not None, "it was simulated"
    last = len(found.stages) - 1
    for n, (stage, on) in enumerate(zip(found.timeline.stages, found.placed, strict=True)):
        kept = stage.activation_bytes * found.run.in_flight(last - n)
        counted = {"resident": stage.resident_bytes, "per_micro_batch": kept, "temporary": stage.temporary_bytes}
        hosts = [left[host] for host in on]
        if not margin.fits(counted, hosts):
            need, there = sum(counted.values()), min(map(margin.usable_bytes, hosts))
            raise NoPlanError(
                f"{strategy} has no plan that fits: in the best it knows, stage {n} needs {units.size(need)} of each "
                f"device, of which {units.size(there)} may be used; give more hosts, another batch or another strategy"
            )
