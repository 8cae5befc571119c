"""The devices, links and layers that may become faster, and the times of a plan's stages where they are."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, final

from alpa_dejavu.calibration import Prices
from alpa_dejavu.clusters.changed_cluster import faster_devices, faster_links
from alpa_dejavu.clusters.host_classes import members_of_kinds
from alpa_dejavu.costs.latency import Latency, LatencyModel
from alpa_dejavu.costs.scaled_layers import own_seconds
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.problem import Cluster, Device, Operators
from alpa_dejavu.simulation.plan_times import Times, plan_times, shortened
from alpa_dejavu.simulation.sensitivity import Figure

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
