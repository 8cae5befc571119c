"""Plans that come from this package's own search: told the truth of the cluster, or what Alpa believes of it."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.calibration import Prices
from alpa_dejavu.planning.planner import plan
from alpa_dejavu.planning.rivals._base import Choice, Strategy
from alpa_dejavu.planning.rivals._task import Task
from alpa_dejavu.planning.rivals.stages import Pipeline, PlacedStage
from alpa_dejavu.planning.search._candidate import config_of_stage
from alpa_dejavu.planning.search._searched import Searched
from alpa_dejavu.planning.search._shapes import micro_batch_counts
from alpa_dejavu.planning.search.models.model_source import GivenModel
from alpa_dejavu.planning.task import PlanningTask, SpaceRules
from alpa_dejavu.problem import Cluster, Plan

__all__ = ["AlpaDefault", "Dejavu", "searched"]


@final
@dataclasses.dataclass(frozen=True)
class Dejavu(Strategy):
    """A strategy that plans by alpa-dejavu's own search; of all numbers of micro-batches it takes the fastest plan.

    Attributes:
        remat: the choices of rematerialisation that stages have, "none" or "layer" or both.
        zero: the ZeRO levels that stages may have, among 0, 2 and 3.
    """

    remat: tuple[str, ...] = ("none", "layer")
    zero: tuple[int, ...] = (0, 2, 3)

    @property
    def name(self) -> str:
        return "alpa-dejavu"

    def _choose(self, task: Task) -> Choice:
        found = searched(task, task.cluster, self.remat, self.zero, hosts="any")
        own_s, pipeline = found[0]
        return Choice((pipeline,), own_s, len(found))


@final
@dataclasses.dataclass(frozen=True)
class AlpaDefault(Strategy):
    """A strategy that plans as Alpa: it takes all hosts to be like the first, and all links like the first two hosts'.

    Alpa profiles collectives and stages on its first hosts, places stages by their size alone, and takes all devices.
    Its stages are searched for as those of alpa-dejavu, with the same choices. The number of micro-batches, which Alpa
    leaves to the user, is the one that is best on the cluster that it believes in.

    Attributes:
        remat: the choices of rematerialisation that stages have, "none" or "layer" or both.
        zero: the ZeRO levels that stages may have, among 0, 2 and 3.

    References:
        Zheng et al., Alpa, OSDI 2022, section 5.
    """

    remat: tuple[str, ...] = ("none", "layer")
    zero: tuple[int, ...] = (0, 2, 3)

    @property
    def name(self) -> str:
        return "alpa"

    def _choose(self, task: Task) -> Choice:
        numbers = [host.num_devices for host in task.cluster.hosts]
        if len(set(numbers)) > 1:
            raise ValueError(f"alpa: the hosts of {task.cluster.name} have {numbers} devices; give them equally many")
        found = searched(task, believed(task.cluster), self.remat, self.zero, hosts="all")
        own_s, pipeline = found[0]
        return Choice((pipeline,), own_s, len(found))


def believed(cluster: Cluster) -> Cluster:
    """Returns a cluster as Alpa takes it to be: all hosts like the first one, all links like the first two hosts'."""
    first, names = cluster.hosts[0], [host.name for host in cluster.hosts]
    between = cluster.links[0][1] if len(names) > 1 else cluster.links[0][0]
    alike = Cluster.uniform(
        cluster.name, names, first.device, first.num_devices, cluster.links[0][0], between,
        memory_margin=first.memory_margin,
    )  # fmt: skip
    return dataclasses.replace(alike, cores=cluster.cores, waiting=cluster.waiting)


def searched(
    task: Task, cluster: Cluster, remat: tuple[str, ...], zero: tuple[int, ...], hosts: str
) -> list[tuple[float, Pipeline]]:
    """Returns the best plans that this package's search finds on a cluster, the fastest first: each with the seconds of
    its step there, and as a pipeline on the hosts of the same names in the task's cluster.

    Args:
        task: the model, the batch, and the models of costs.
        cluster: a part of the task's cluster, or what somebody believes of it.
        remat: the choices of rematerialisation that stages have, "none" or "layer" or both.
        zero: the ZeRO levels that stages may have, among 0, 2 and 3.
        hosts: whether the plans use "all" of the cluster's hosts, or "any".

    Raises:
        NoPlanError: no number of micro-batches has a plan.
    """
    counts = micro_batch_counts(task.batch, cluster) if task.micro_batches is None else (task.micro_batches,)
    question = PlanningTask(
        source=GivenModel(task.model, task.samples),
        prices=Prices(cluster, task.models),
        batch=task.batch,
        layers=(task.model.num_layers,),
        micro_batches=counts,
        chooser=Searched(hosts),
        space=SpaceRules(remat=remat, zero=zero),
        margin=task.margin,
    )
    made = plan(question, annotations=())
    plans = [made.plan, *(other.plan for other in made.runners_up)]
    return [(one.step_s, pipeline_of(one, task.cluster, task.batch // one.num_micro_batches)) for one in plans]


def pipeline_of(made: Plan, cluster: Cluster, micro_batch: int) -> Pipeline:
    """Returns a plan's stages as a pipeline on the devices of the hosts that the plan names."""
    number = {host.name: n for n, host in enumerate(cluster.hosts)}
    stages = []
    for stage in made.stages:
        hosts = tuple(number[name] for name in stage.hosts for _ in range(stage.submesh.devices_per_host))
        stages.append(PlacedStage(*stage.layers, hosts, config_of_stage(stage)))
    return Pipeline(tuple(stages), micro_batch, made.num_micro_batches)
