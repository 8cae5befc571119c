"""The plans of a case: written down by hand (which layers on which hosts), and chosen by the planner and by AMP."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from alpa_dejavu.calibration import HostLinks
from alpa_dejavu.clusters.cpu_probe import measured_cpu
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.rivals import as_planned, strategy
from alpa_dejavu.problem import Cluster, Device, Host, Link, Model, Plan, StagePlan, Submesh
from hetero._cases import Case
from hetero._runs import Place

_CUTS = 3
"""So many cuts of each way of giving hosts to stages are in the enumeration, the most even ones."""
_PARALLEL = {"force_batch_dim_to_mesh_dim": 0}


@final
@dataclasses.dataclass(frozen=True)
class Layout:
    """For each stage its layers, first and last, and its hosts; on several hosts a stage is data-parallel."""

    layers: tuple[tuple[int, int], ...]
    places: tuple[Place, ...]

    def plan(self, case: Case, names: Sequence[str]) -> Plan:
        """As Alpa can run it; nothing is predicted."""
        stages = [
            stage_of(layers, [names[host] for host in place], (len(place), 1), _PARALLEL if len(place) > 1 else {})
            for layers, place in zip(self.layers, self.places, strict=True)
        ]
        return plan_of(case, stages)


def stage_of(
    layers: tuple[int, int], hosts: Sequence[str], logical: tuple[int, ...], options: Mapping[str, Any]
) -> StagePlan:
    """A stage with a device on each of these hosts, of which nothing is predicted."""
    return StagePlan(layers, Submesh(len(hosts), 1), logical, tuple(hosts), memory_limit_bytes=1e12, options=options)


def plan_of(case: Case, stages: Sequence[StagePlan]) -> Plan:
    """These stages, for the case's job."""
    return Plan(
        stages=tuple(stages), step_s=0.0, num_micro_batches=case.micro_batches, schedule="1f1b", cluster=case.name,
        planning_s={}, model=case.job.name, batch=case.job.batch,
    )  # fmt: skip


def label(plan: Plan, names: Sequence[str]) -> str:
    """A plan in words; the same plan has the same label."""
    numbers = {name: number for number, name in enumerate(names)}
    parts = []
    for stage in plan.stages:
        first, last = stage.layers
        part = f"{first}-{last} on {'+'.join(str(numbers[host]) for host in stage.hosts)}"
        if len(stage.hosts) > 1:
            forced = stage.options == _PARALLEL and stage.logical_mesh == (len(stage.hosts), 1)
            shape = "x".join(map(str, stage.logical_mesh))
            part += "" if forced and not stage.zero else f" as {shape} {dict(stage.options)} ZeRO-{stage.zero}"
        parts.append(part)
    return f"{plan.num_micro_batches} micro-batches: {', '.join(parts)}"


def enumeration(case: Case, model: Model) -> list[Layout]:
    """Pipelines on two to all hosts in every order, two stages of two hosts, and all hosts data-parallel.

    Each has some cuts, the most even ones for what its hosts can compute. Of those that are alike by what their hosts
    can compute and by the links between them there is one.
    """
    work = [layer.forward.product_flop + layer.backward.product_flop for layer in model.layers]
    found: dict[object, Layout] = {}
    for places in _places(case.num_hosts):
        # A stage computes at its slowest host.
        speeds = [len(place) * min(case.shares[host] for host in place) for place in places]
        for layers in _even_cuts(work, speeds):
            found.setdefault((layers, _likeness(case, places)), Layout(layers, places))
    return list(found.values())


def _places(num_hosts: int) -> Iterator[tuple[Place, ...]]:
    for length in range(num_hosts, 1, -1):
        for hosts in itertools.permutations(range(num_hosts), length):
            yield tuple((host,) for host in hosts)
    for first in itertools.combinations(range(num_hosts), num_hosts // 2):
        yield first, tuple(host for host in range(num_hosts) if host not in first)
    yield (tuple(range(num_hosts)),)


def _even_cuts(work: Sequence[float], speeds: Sequence[float]) -> list[tuple[tuple[int, int], ...]]:
    """Those whose slowest stage is fastest."""
    cuts = []
    for inner in itertools.combinations(range(1, len(work)), len(speeds) - 1):
        ranges = tuple((a, b - 1) for a, b in itertools.pairwise((0, *inner, len(work))))
        slowest = max(sum(work[a : b + 1]) / speed for (a, b), speed in zip(ranges, speeds, strict=True))
        cuts.append((slowest, ranges))
    return [ranges for _, ranges in sorted(cuts)[:_CUTS]]


def _likeness(case: Case, places: Sequence[Place]) -> object:
    """A key that two ways of giving hosts to stages share if they take equally long."""
    rates = case.bytes_per_s

    def slowest(here: Place, there: Place) -> float:
        return min((rates[a][b] for a in here for b in there if a != b), default=0.0)

    within = [(sorted(case.shares[host] for host in place), slowest(place, place)) for place in places]
    between = [(slowest(a, b), slowest(b, a)) for a, b in itertools.pairwise(places)]
    return repr((within, between))


_BEFORE = Link(4e-3, 0.3e9, 3e-3, 0.3e9)
"""Links before they are measured, as in `clusters/local-cpu.json`."""


def cluster_of(case: Case, links: HostLinks) -> Cluster:
    """The hosts with measured links: a core is measured, too, and each host has its share of one."""
    core = measured_cpu(os.cpu_count() or 1)
    hosts = tuple(Host(name, _part(core, share), 1) for name, share in zip(links.hosts, case.shares, strict=True))
    unknown = tuple((_BEFORE,) * len(hosts) for _ in hosts)
    return links.applied_to(Cluster(case.name, hosts, unknown), "links")


def chosen_plan(case: Case, cluster: Cluster) -> Plan:
    """The planner's choice with the number of micro-batches and the layers that all plans of the case have."""
    job = case.job
    return plan_model(
        job.model,
        cluster,
        batch=job.batch,
        micro_batches=case.micro_batches,
        layers=job.layers,
        remat=("none",),
        zero=(0,),
        communication="links",
    ).plan


def _part(device: Device, share: float) -> Device:
    """A device that has a share of a core: everything takes so many times longer."""
    return dataclasses.replace(
        device,
        name=f"{share:g} of a core",
        flop_per_s={dtype: share * rate for dtype, rate in device.flop_per_s.items()},
        vector_flop_per_s=share * device.vector_flop_per_s,
        memory_bytes_per_s=share * device.memory_bytes_per_s,
        kernel_s=device.kernel_s / share,
        dispatch_s=device.dispatch_s / share,
        step_s=device.step_s / share,
    )


def amps_plan(case: Case, model: Model, cluster: Cluster) -> Plan:
    """AMP's choice for a case, knowing the links and the hosts, by layers for a micro-batch of it."""
    job = case.job
    samples = job.batch // case.micro_batches
    made = strategy("amp").plan(model, cluster, batch=job.batch, samples=samples)
    plan = as_planned(made, model, cluster, samples=samples, name=job.name).plan
    return dataclasses.replace(plan, cluster=case.name)
