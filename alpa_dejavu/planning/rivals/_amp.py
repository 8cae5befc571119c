"""AMP: every uniform (data, tensor, pipeline) division and micro-batch size, each cut by its pipeline program."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import final

from alpa_dejavu._util.ties import least, ordered
from alpa_dejavu.planning.rivals._amp_costs import AmpCosts, Degrees
from alpa_dejavu.planning.rivals._base import Choice, Strategy
from alpa_dejavu.planning.rivals._divide import divisors, host_orders
from alpa_dejavu.planning.rivals._task import Task
from alpa_dejavu.planning.rivals.stages import Pipeline, PlacedStage, config_of, ranks
from alpa_dejavu.problem import Cluster, NoPlanError, checks
from alpa_dejavu.slicing.amp_pipe import VARIANTS

__all__ = ["Amp"]


@final
@dataclasses.dataclass(frozen=True)
class Amp(Strategy):
    """A strategy that plans as AMP: it searches all uniform divisions by AMP's cost model, and takes the one with the
    shortest estimated step that fits into memory.

    Tensor-parallel devices are in one host, ranks are numbered tensor parallel first, then data, then pipeline, and all
    stages have the same degrees of parallelism. AMP itself runs its best candidates and takes the fastest. In place of
    that, candidates that don't fit into memory are left out here, and of the `trials` best by AMP's estimate the one
    with the shortest simulated step is taken. If none fits, the best by AMP's estimate is taken.

    The variants differ in details of the cost model (which link or device counts where they are unlike), and in the
    order of the hosts: "paper" makes the placement of ranks part of the search, "released" numbers them in the order of
    the cluster's hosts. How the paper searches placements where hosts are of many kinds isn't sure; here each order of
    the kinds is tried, up to `orders` of them drawn by a seed.

    Attributes:
        variant: "paper" or "released" (the authors' code).
        trials: how many candidates are simulated.
        orders: how many orders of the hosts are tried at most.

    Raises ValueError for another variant, numbers below one and, when planning, for hosts with unlike numbers of
    devices.

    References:
        Li et al., AMP: Automatically Finding Model Parallel Strategies with Heterogeneity Awareness, NeurIPS 2022, and
        the code that its authors released.
    """

    variant: str = "paper"
    trials: int = 1
    orders: int = 24

    def __post_init__(self) -> None:
        checks.one_of("amp", "variant", self.variant, VARIANTS)
        checks.positive("amp", "trials", self.trials)
        checks.positive("amp", "orders", self.orders)

    @property
    def name(self) -> str:
        return f"amp ({self.variant})"

    def estimates(self, task: Task) -> list[tuple[float, Pipeline]]:
        """Returns AMP's candidate pipelines, each after its estimated seconds of a step, the shortest first.

        Raises:
            ValueError: hosts have unlike numbers of devices.
        """
        hosts = range(len(task.cluster.hosts))
        orders = host_orders(task.cluster, self.orders) if self.variant == "paper" else [tuple(hosts)]
        found = []
        for degrees in _degrees(task):
            for order in orders:
                costs = AmpCosts(task, degrees, ranks(task.cluster, order), self.variant)
                starts = costs.starts()
                if starts:
                    found.append((costs.step_s(starts), _pipeline(costs, starts)))
        return ordered(found, key=lambda one: one[0])

    def _choose(self, task: Task) -> Choice:
        found = self.estimates(task)
        if not found:
            raise NoPlanError(
                f"AMP has no plan for {task.model.num_layers} layers and a batch of {task.batch}{task.in_parts} on "
                f"{task.cluster.name}; give a batch that some number of its devices divides"
            )
        fitting = [n for n, (_, pipeline) in enumerate(found) if task.fits(pipeline)]
        best = least(fitting[: self.trials] or [0], key=lambda n: task.step_s(found[n][1]))
        own_s, pipeline = found[best]
        return Choice((pipeline,), own_s, len(found))


def _degrees(task: Task) -> Iterator[Degrees]:
    """All that divide the devices and the batch."""
    per_host = _devices_per_host(task.cluster)
    devices = task.cluster.num_devices
    for along in divisors(per_host):
        for across in divisors(devices // along):
            stages = devices // along // across
            if task.batch % across == 0 and stages <= task.model.num_layers:
                for each in task.cuts(task.batch // across):
                    yield Degrees(across, along, stages, each, task.batch // across // each)


def _devices_per_host(cluster: Cluster) -> int:
    numbers = {host.num_devices for host in cluster.hosts}
    if len(numbers) != 1:
        raise ValueError(
            f"amp: the hosts of cluster {cluster.name} have {sorted(numbers)} devices; AMP numbers its ranks on hosts "
            "with equally many: leave some out"
        )
    return numbers.pop()


def _pipeline(costs: AmpCosts, starts: tuple[int, ...]) -> Pipeline:
    degrees = costs.degrees
    config = config_of(degrees.data, degrees.tensor)
    ends = [*starts[1:], costs.num_layers]
    stages = tuple(
        PlacedStage(start, end - 1, costs.hosts(n), config)
        for n, (start, end) in enumerate(zip(starts, ends, strict=True))
    )
    return Pipeline(stages, degrees.data * degrees.each, degrees.count)
