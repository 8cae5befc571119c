"""Plans that come from this package's own search: told the truth of the cluster, or what Alpa believes of it."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.calibration import Prices
from alpa_dejavu.planning.planner import plan
from alpa_dejavu.planning.rivals._base import Strategy, StrategyChoice
from alpa_dejavu.planning.rivals._task import StrategyTask
from alpa_dejavu.planning.rivals.stages import Pipeline, PlacedStage
from alpa_dejavu.planning.search._candidate import config_of_stage
from alpa_dejavu.planning.search._searched import Searched
from alpa_dejavu.planning.search._shapes import micro_batch_counts
from alpa_dejavu.planning.search.models.model_source import GivenModel
from alpa_dejavu.planning.task import PlanningTask, SpaceRules
from alpa_dejavu.problem import Cluster, Plan


@final
@dataclasses.dataclass(frozen=True)
class Dejavu(Strategy):
    """A strategy that plans by alpa-dejavu's own search; of all numbers of micro-batches it takes the fastest plan."""

    remat: tuple[str, ...] = ("none", "layer")  # the choices of rematerialisation that stages have
    zero: tuple[int, ...] = (0, 2, 3)  # the ZeRO levels that stages may have, among 0, 2 and 3

    @property
    def name(self) -> str:
        return "alpa-dejavu"

    def _choose(self, task: StrategyTask) -> StrategyChoice:
        return _first(searched(task, task.cluster, SpaceRules(remat=self.remat, zero=self.zero), hosts="any"))


@final
@dataclasses.dataclass(frozen=True)
class AlpaDefault(Strategy):
    """A strategy that plans as Alpa: it takes all hosts to be like the first, and all links like the first two hosts'.

    Alpa profiles collectives and stages on its first hosts, places stages by their size alone, and takes all devices.
    Its stages are searched for as those of alpa-dejavu, with the same choices of `remat` and `zero`. The number of
    micro-batches, which Alpa leaves to the user, is the one that is best on the cluster that it believes in.

    References:
        Zheng et al., Alpa, OSDI 2022, section 5.
    """

    remat: tuple[str, ...] = ("none", "layer")
    zero: tuple[int, ...] = (0, 2, 3)

    @property
    def name(self) -> str:
        return "alpa"

    def _choose(self, task: StrategyTask) -> StrategyChoice:
        numbers = [host.num_devices for host in task.cluster.hosts]
        if len(set(numbers)) > 1:
            raise ValueError(f"alpa: the hosts of {task.cluster.name} have {numbers} devices; give them equally many")
        rules = SpaceRules(remat=self.remat, zero=self.zero)
        return _first(searched(task, _believed(task.cluster), rules, hosts="all"))


def _first(plans: list[tuple[float, Pipeline]]) -> StrategyChoice:
    own_s, pipeline = plans[0]
    return StrategyChoice((pipeline,), own_s, len(plans))


def _believed(cluster: Cluster) -> Cluster:
    """Returns a cluster as Alpa takes it to be: all hosts like the first one, all links like the first two hosts'."""
    first, names = cluster.hosts[0], [host.name for host in cluster.hosts]
    between = cluster.links[0][1] if len(names) > 1 else cluster.links[0][0]
    alike = Cluster.uniform(
        cluster.name, names, first.device, first.num_devices, cluster.links[0][0], between,
        memory_margin=first.memory_margin,
    )  # fmt: skip
    return dataclasses.replace(alike, cores=cluster.cores, waiting=cluster.waiting)


def counts_of(task: StrategyTask, cluster: Cluster) -> tuple[int, ...]:
    """Returns the numbers of micro-batches that a task leaves open on a cluster."""
    return micro_batch_counts(task.batch, cluster) if task.micro_batches is None else (task.micro_batches,)


def searched(task: StrategyTask, cluster: Cluster, rules: SpaceRules, hosts: str) -> list[tuple[float, Pipeline]]:
    """Returns the best plans that this package's search finds on a cluster (a part of the task's, or what somebody
    believes of it), on "all" or "any" of its hosts, the fastest first: the seconds of its step there, and the pipeline
    on the task's hosts of those names. Raises NoPlanError if there is none.
    """
    result = plan(
        PlanningTask(
            source=GivenModel(task.model, task.samples),
            prices=Prices(cluster, task.models),
            batch=task.batch,
            layers=(task.model.num_layers,),
            micro_batches=counts_of(task, cluster),
            chooser=Searched(hosts),
            space=rules,
            margin=task.margin,
        ),
        annotations=(),
    )
    plans = [result.plan, *(other.plan for other in result.runners_up)]
    return [(best.step_s, _pipeline_of(best, task)) for best in plans]


def _pipeline_of(chosen: Plan, task: StrategyTask) -> Pipeline:
    """Returns a plan's stages as a pipeline on the devices of the hosts that the plan names."""
    number = {host.name: n for n, host in enumerate(task.cluster.hosts)}
    stages = []
    for stage in chosen.stages:
        hosts = tuple(number[name] for name in stage.hosts for _ in range(stage.submesh.devices_per_host))
        stages.append(PlacedStage(*stage.layers, hosts, config_of_stage(stage)))
    return Pipeline(tuple(stages), task.batch // chosen.num_micro_batches, chosen.num_micro_batches)
