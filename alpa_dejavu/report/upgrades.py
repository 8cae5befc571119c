"""Finds what to buy or to speed up first: derivatives by devices, bandwidths and layers, and best plans at twice each.

A plan alone doesn't tell bandwidth from latency, devices from each other, or the layers of a stage; what was kept of it
does.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, final

from alpa_dejavu.calibration import Calibration, Prices
from alpa_dejavu.clusters.changed_cluster import faster_devices, faster_links, with_more_memory
from alpa_dejavu.clusters.host_classes import members_of_kinds
from alpa_dejavu.costs.latency import Latency, LatencyModel
from alpa_dejavu.costs.scaled_layers import own_seconds
from alpa_dejavu.planning import estimate, given_stages
from alpa_dejavu.planning import plan as best_plan
from alpa_dejavu.planning.changed.kept import Kept
from alpa_dejavu.planning.changed.kept_task import kept_prices, kept_task
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.problem import Cluster, Device, NoPlanError, Operators, Plan
from alpa_dejavu.simulation.plan_times import PlanStep, Times, plan_times, shortened
from alpa_dejavu.simulation.sensitivity import Figure, Sensitivity, derivatives

_RESOURCES, _LAYERS = 6, 2
"""The best plan is looked for at twice so many devices and bandwidths, and halves of so many layers, that save most."""
_FULL = 0.9
"""The share of a device's memory from which on more of it may be worth something."""
_BETTER = 1e-4
"""A plan that saves less than this share of a step isn't another one."""


@final
@dataclasses.dataclass(frozen=True)
class Upgrades:
    """The changes to devices, links and layers that would shorten a plan's step, with what they would save."""

    by_figure: tuple[Sensitivity, ...]  # by devices, links and layers; with the best plan at twice for what helps most
    now: Plan | None = None  # another plan that is better without any change; None: there is none
    with_memory: Plan | None = None  # the best at twice each device's memory; None: not better, or no limit


def upgrades(plan: Plan, kept: Kept, *, calibration: str | os.PathLike[str] | Calibration | None = None) -> Upgrades:
    """Returns how a plan's step depends on devices, links and layers, and the best plan where one is twice as good, by
    its record and the calibration that priced it ("none": data sheets; None: its models).

    Raises ValueError if the record is of another plan, or lacks a mesh's sharding, or the plan was priced by other
    models.
    """
    prices = kept_prices(plan, kept, calibration=calibration)
    looker = _Looker(plan, kept, prices)
    kinds, layers = list(resources(prices)), list(layer_figures(looker.base))
    figures = [resource_figure(kind, looker.times) for kind in kinds]
    slopes = derivatives(looker.step, plan, [*figures, *(figure for _, figure in layers)])
    order = sorted(range(len(slopes)), key=lambda n: (-slopes[n].gained_s, -slopes[n].saved_s))
    for n in [n for n in order if n < len(kinds)][:_RESOURCES]:
        slopes[n] = _with_best(slopes[n], looker.best(kinds[n].at(2.0), slopes[n].twice_s))
    for n in [n for n in order if n >= len(kinds) and slopes[n].saved_s > 0][:_LAYERS]:
        cheaper = layers[n - len(kinds)][0]
        factors = tuple(0.5 if layer == cheaper else 1.0 for layer in range(kept.model.num_layers))
        slopes[n] = _with_best(slopes[n], looker.best(prices, slopes[n].twice_s, factors))
    now, roomier = looker.best(prices, plan.step_s), None
    if any(stage.offloaded.any or stage.memory_bytes > _FULL * stage.memory_limit_bytes for stage in plan.stages):
        more = dataclasses.replace(prices, cluster=with_more_memory(prices.cluster, 2.0))
        roomier = looker.best(more, plan.step_s if now is None else now.step_s)
    return Upgrades(tuple(slopes), now, roomier)


def _with_best(sensitivity: Sensitivity, best: Plan | None) -> Sensitivity:
    """Returns the entry on a change with the best plan after it, and that plan's step; the present one's if none is."""
    return dataclasses.replace(sensitivity, best_s=sensitivity.twice_s if best is None else best.step_s, best=best)


@final
class _Looker:
    """A search that prices the given plan, and looks for better ones."""

    def __init__(self, plan: Plan, kept: Kept, prices: Prices) -> None:
        self._plan, self._kept = plan, kept
        for n, stage in enumerate(given_stages(plan)):
            if not kept.knows(stage.config):
                raise ValueError(
                    f"stage {n} has the logical mesh {'x'.join(map(str, stage.config.shape))}, of which nothing is "
                    "kept: a search doesn't offer it; give a plan of one"
                )
        self.base = self._estimated(prices)
        self._ratio = plan.step_s / self.base.plan.step_s
        self.step = PlanStep(plan, plan_times(self.base.plan), self._ratio)

    def _estimated(self, prices: Prices) -> PlanningResult:
        return estimate(
            self._kept.model, prices.cluster, self._kept.run, given_stages(self._plan),
            latency=prices.models.latency, communication=prices.models.communication, runtime=prices.models.runtime,
        )  # fmt: skip

    def times(self, prices: Prices) -> Times:
        """Returns the times of the plan's stages on the cluster, and by the cost models, of `prices`."""
        return plan_times(self._estimated(prices).plan)

    def best(self, prices: Prices, below_s: float, factors: tuple[float, ...] | None = None) -> Plan | None:
        """Returns the best plan by `prices` and layers' cost `factors` if its step is below `below_s` seconds, else
        None; its step is scaled as the present plan's own step is to that estimated here.
        """
        task = dataclasses.replace(kept_task(self._plan, self._kept, prices), factors=factors)
        try:
            best = best_plan(task, annotations=()).plan
        except NoPlanError:
            return None
        step_s = best.step_s * self._ratio
        return None if step_s > below_s * (1 - _BETTER) else dataclasses.replace(best, step_s=step_s)


_UNIT = 1e-4
"""The logarithm of the factor that prices are changed by for a derivative."""
_FEW_KINDS = 3
"""Where there are more kinds of hosts, links are told apart only by whether they join hosts."""
_Pairs: TypeAlias = list[tuple[int, int]]


@final
@dataclasses.dataclass(frozen=True)
class Resource:
    """A kind of "devices" or "links" that might become faster: its name, and the cluster and prices where it is."""

    what: str
    part: str
    at: Callable[[float], Prices]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Quicker(LatencyModel):
    """A latency model for devices that are so many times as fast as others that `model` knows, whatever it goes by."""

    model: LatencyModel
    before: Mapping[Device, Device]
    factor: float

    def predict(self, operators: Operators, device: Device) -> Latency:
        """Returns the seconds on the present device, divided by the factor where it was made faster."""
        costs = self.model.predict(operators, self.before.get(device, device))
        return Latency(costs.mean_s / self.factor, costs.spread_s / self.factor) if device in self.before else costs


def resources(prices: Prices) -> Iterator[Resource]:
    """Yields each type of device, and each kind of link within and between hosts, as what might become faster."""
    cluster = prices.cluster
    names = list(dict.fromkeys(host.device.name for host in cluster.hosts))
    for name in names:
        what = "all devices" if len(names) == 1 else f"devices of type {name}"
        yield Resource(what, "devices", functools.partial(_with_devices, prices, name))
    for what, ends in _links(cluster).items():
        yield Resource(what, "links", functools.partial(_with_links, prices, ends))


def _with_devices(prices: Prices, name: str, factor: float) -> Prices:
    cluster, before = faster_devices(prices.cluster, name, factor)
    quicker = dataclasses.replace(prices.models, latency=_Quicker(prices.models.latency, before, factor))
    return dataclasses.replace(prices, cluster=cluster, models=quicker)


def _with_links(prices: Prices, ends: _Pairs, factor: float) -> Prices:
    return dataclasses.replace(prices, cluster=faster_links(prices.cluster, ends, factor))


def _links(cluster: Cluster) -> dict[str, _Pairs]:
    """Returns the pairs of hosts that each name of links stands for; none where it has no two devices."""
    members, hosts = members_of_kinds(cluster), range(len(cluster.hosts))
    several = [host for host in hosts if cluster.hosts[host].num_devices > 1]
    if not 1 < len(members) <= _FEW_KINDS:
        pairs = {
            "bandwidth within hosts": [(host, host) for host in several],
            "bandwidth between hosts": [(a, b) for a in hosts for b in hosts if a != b],
        }
        return {what: ends for what, ends in pairs.items() if ends}
    more = [f" and {len(kind) - 1} alike" if kind[1:] else "" for kind in members]
    names = [cluster.hosts[kind[0]].name + others for kind, others in zip(members, more, strict=True)]
    pairs = {}
    for a, kind in enumerate(members):
        pairs[f"bandwidth within {names[a]}"] = [(host, host) for host in kind if host in several]
        pairs[f"bandwidth among {names[a]}"] = [(sender, other) for sender in kind for other in kind if sender != other]
        for b in range(a):
            both = [pair for sender in kind for other in members[b] for pair in ((sender, other), (other, sender))]
            pairs[f"bandwidth between {names[b]} and {names[a]}"] = both
    return {what: ends for what, ends in pairs.items() if ends}


def resource_figure(resource: Resource, times: Callable[[Prices], Times]) -> Figure:
    """Returns a plan's stages' times where a resource is a little faster, a little slower, or twice as fast."""
    better, worse, twice = (times(resource.at(factor)) for factor in (math.exp(_UNIT), math.exp(-_UNIT), 2.0))
    return Figure(resource.what, resource.part, better, worse, twice, _UNIT)


def layer_figures(planned: PlanningResult) -> Iterator[tuple[int, Figure]]:
    """Yields each layer, and the stages' times where it takes a little less, a little more, or half as long."""
    times, seconds = plan_times(planned.plan), own_seconds(planned.table)
    for n, stage in enumerate(planned.choices):
        for layer in range(stage.first, stage.last + 1):
            own = seconds[:, layer, stage.submesh, stage.config].tolist()
            better, worse, twice = (_saving(times, n, [share * part for part in own]) for share in (1.0, -1.0, 0.5))
            yield layer, Figure(f"cost of layer {layer}", "layers", better, worse, twice)


def _saving(times: Times, stage: int, seconds: Sequence[float]) -> Times:
    """Returns the times of stages one of which computes so many seconds less: forward, backward and once a step."""
    return (*times[:stage], shortened(times[stage], *seconds), *times[stage + 1 :])
