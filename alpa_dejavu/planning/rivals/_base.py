"""The interface of strategies, and the plans that they answer with."""

from __future__ import annotations

import abc
import dataclasses
import time
from typing import final

from alpa_dejavu.costs.communication import CommunicationModel
from alpa_dejavu.costs.latency import LatencyModel
from alpa_dejavu.costs.memory_margin import UNMEASURED, MemoryMargin
from alpa_dejavu.costs.runtime import ALPA, CostModels, RuntimeProfile
from alpa_dejavu.planning.rivals._task import StrategyTask
from alpa_dejavu.planning.rivals.stages import Pipeline
from alpa_dejavu.problem import Cluster, Model


@final
@dataclasses.dataclass(frozen=True)
class StrategyChoice:
    """The division that a planner chooses, before it is priced as all others; `StrategyPlan` says more of it."""

    pipelines: tuple[Pipeline, ...]
    own_s: float | None
    tried: int
    # Where there are several pipelines, how many waves (as many micro-batches as a pipeline has stages) one may be
    # ahead of another; None: they are synchronous, and wait for each other at the end of each step.
    staleness: int | None = None
    notes: tuple[str, ...] = ()


@final
@dataclasses.dataclass(frozen=True)
class StrategyPlan:
    """The plan that a strategy makes, priced by the same cost model for all strategies."""

    strategy: str  # the name of the strategy that made it
    pipelines: tuple[Pipeline, ...]  # several are data-parallel ones, such as HetPipe's virtual workers
    batch: int
    step_s: float  # of a step, simulated on the cluster as it is; for virtual workers an estimate of their pace
    own_s: float | None  # seconds of a step by the strategy's own cost model; None where it has none
    fits: bool  # whether every stage fits into its devices' memory, by the same count for all strategies
    runs_on_alpa: bool  # whether Alpa's runtime can run it as it is
    tried: int  # how many plans the strategy compared
    seconds: float
    notes: tuple[str, ...] = ()  # sentences on what isn't known, or why the plan can't be run
    computing_s: tuple[float, ...] = ()  # for each pipeline, of a step's micro-batches without what comes once

    @property
    def samples_per_s(self) -> float:
        """Returns the plan's training throughput in samples per second."""
        return self.batch / self.step_s


@final
class UnlikePipelinesError(ValueError):
    """An error that says that a strategy's plan has several unlike pipelines, and so isn't one row of stages."""

    def __init__(self, plan: StrategyPlan, cluster: Cluster) -> None:
        super().__init__(
            f"strategy is {plan.strategy!r}, whose {len(plan.pipelines)} pipelines are unlike here, but must be one "
            "whose plan is a row of stages, for Alpa to run it and for files to hold it; take 'dejavu', the best "
            "single pipeline"
        )
        self.plan, self.cluster = plan, cluster


class Strategy(abc.ABC):
    """A strategy, which divides a model's training among a cluster's devices as a known planner does, such as AMP."""

    @final
    def plan(
        self,
        model: Model,
        cluster: Cluster,
        batch: int,
        *,
        samples: int = 1,
        micro_batches: int | None = None,
        latency: str | LatencyModel = "analytic",
        communication: str | CommunicationModel = "alpha-beta",
        runtime: str | RuntimeProfile = ALPA,
        margin: MemoryMargin = UNMEASURED,
    ) -> StrategyPlan:
        """Returns the plan that the strategy makes for a model on a cluster, priced by the given cost models.

        The layers are those of a micro-batch of `samples`; each pipeline has `micro_batches`; None: the strategy
        chooses. Raises ValueError for a model, batch or cluster that the strategy can't handle, and NoPlanError if it
        finds no plan.
        """
        started = time.perf_counter()
        models = CostModels.named(latency, communication, runtime)
        task = StrategyTask(model, samples, cluster, batch, models, micro_batches, margin)
        choice = self._choose(task)
        seconds, pipelines, staleness = time.perf_counter() - started, choice.pipelines, choice.staleness
        alone = len(pipelines) == 1
        return StrategyPlan(
            strategy=self.name,
            pipelines=pipelines,
            batch=batch,
            step_s=task.synchronous_s(pipelines) if alone or staleness is None else task.steady_s(pipelines, staleness),
            own_s=choice.own_s,
            fits=all(map(task.fits, pipelines)),
            runs_on_alpa=alone and all(stage.is_submesh for stage in pipelines[0].stages),
            tried=choice.tried,
            seconds=seconds,
            notes=choice.notes,
            computing_s=task.computing_s(pipelines),
        )

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Returns the name by which people call the strategy, with its variant."""

    @abc.abstractmethod
    def _choose(self, task: StrategyTask) -> StrategyChoice:
        """Returns the strategy's choice for a task."""
