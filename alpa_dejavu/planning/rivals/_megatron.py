"""Megatron-LM's uniform division, as an expert sets it up."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import final

from alpa_dejavu.clusters.space import divisors
from alpa_dejavu.planning.rivals._base import Strategy, StrategyChoice
from alpa_dejavu.planning.rivals._task import StrategyTask
from alpa_dejavu.planning.rivals.stages import Pipeline, PlacedStage, config_of, equal_layers, ranks
from alpa_dejavu.problem import NoPlanError, checks


@final
@dataclasses.dataclass(frozen=True)
class Megatron(Strategy):
    """A strategy that plans as Megatron-LM: equal stages on ranks in host order, tensor, data, then pipeline parallel.

    The degrees are by "rule" an expert's choice: no more model parallelism than memory asks for, tensor parallelism
    within a host before pipeline stages, all other devices data parallel; or the best of "all", as an expert finds who
    has the time to try them. The size of the micro-batch is the one with the shortest simulated step among those that
    fit into memory. Layers that are left over go one each to the first stages.

    References:
        Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC 2021,
        section 3 (its takeaways 1 to 3).
    """

    degrees: str = "rule"

    def __post_init__(self) -> None:
        checks.one_of("megatron", "degrees", self.degrees, ("rule", "all"))

    @property
    def name(self) -> str:
        return "megatron" if self.degrees == "rule" else "megatron (all degrees)"

    def _choose(self, task: StrategyTask) -> StrategyChoice:
        best: Pipeline | None = None
        best_s, tried = math.inf, 0
        for tensor, stages in _model_parallel(task):
            for pipeline in _pipelines(task, tensor, stages):
                tried += 1
                if task.fits(pipeline) and (step_s := task.step_s(pipeline)) < best_s:
                    best, best_s = pipeline, step_s
            if best is not None and self.degrees == "rule":
                break
        if best is None:
            raise NoPlanError(
                f"no equal stages of {task.model.num_layers} layers fit the devices of {task.cluster.name} with a "
                f"batch of {task.batch}{task.in_parts} ({tried} divisions tried); give more hosts, or another batch"
            )
        return StrategyChoice((best,), None, tried)


def _model_parallel(task: StrategyTask) -> list[tuple[int, int]]:
    """Returns the numbers of tensor-parallel devices and of stages: few devices first, then more tensor parallelism."""
    devices = task.cluster.num_devices
    degrees = [
        (tensor, stages)
        for tensor in divisors(math.gcd(*(host.num_devices for host in task.cluster.hosts)))
        for stages in divisors(devices // tensor)
        if stages <= task.model.num_layers and task.batch % (devices // tensor // stages) == 0
    ]
    return sorted(degrees, key=lambda pair: (pair[0] * pair[1], -pair[0]))


def _pipelines(task: StrategyTask, tensor: int, count: int) -> Iterator[Pipeline]:
    """Yields the pipelines of these degrees with every size of micro-batch."""
    data = task.cluster.num_devices // tensor // count
    hosts = ranks(task.cluster, range(len(task.cluster.hosts)))
    size, config = data * tensor, config_of(data, tensor)
    stages = tuple(
        PlacedStage(first, last, hosts[n * size : (n + 1) * size], config)
        for n, (first, last) in enumerate(equal_layers(task.model.num_layers, count))
    )
    for samples in task.cuts(task.batch // data):
        yield Pipeline(stages, data * samples, task.batch // data // samples)
