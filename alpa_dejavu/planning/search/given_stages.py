"""Plans whose stages somebody gives: costed as any other, nothing searched.

Their hosts must be in the cluster, and Alpa must have their logical meshes and options.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import final

from alpa_dejavu._util.near_names import near
from alpa_dejavu.clusters.host_classes import kinds_of
from alpa_dejavu.planning.search._candidate import Candidate, config_of_stage, simulated
from alpa_dejavu.planning.search._pricing import priced
from alpa_dejavu.planning.task import Chooser, Clock, Found, PlanningTask
from alpa_dejavu.plans.stage_rows import mesh_text
from alpa_dejavu.problem import Cluster, MeshConfig, Model, Plan, Run, SearchSpace, Slicing, StageChoice, Submesh

_SWITCHES = (
    "enable_auto_sharding", "allow_all_gather", "allow_all_to_all", "allow_replicated_parameters",
    "force_data_parallel", "force_zero_stage_3", "prefer_reduce_scatter", "allow_mixed_mesh_shape",
    "allow_recompute_heavy_op",
)  # fmt: skip
_AXIS = "force_batch_dim_to_mesh_dim"
_OPTIONS: Mapping[str, tuple[type, str]] = {
    **dict.fromkeys(_SWITCHES, (bool, "true or false")),
    _AXIS: (int, "an axis of the logical mesh"),
    "force_zero_stage_3_all_gather_threshold": (int, "a whole number of bytes"),
    "force_simple_heuristic": (str, "text"),
    "all_reduce_threshold": (int, "a whole number of bytes"),
}
"""The options of Alpa's `AutoShardingOption`, each with its type and the words for it."""
PRICED_OPTIONS = (_AXIS, "force_zero_stage_3", "prefer_reduce_scatter")
"""The options that a stage's costs go by; the last two by its ZeRO level."""


@final
@dataclasses.dataclass(frozen=True)
class GivenStage:
    """A stage as a user gives it: layers first..last (inclusive), submesh, config, and host names or None (any)."""

    first: int
    last: int
    submesh: Submesh
    config: MeshConfig
    hosts: tuple[str, ...] | None = None


def given_stages(plan: Plan) -> list[GivenStage]:
    """Returns the stages of a plan without their costs, so that they can be costed anew."""
    return [GivenStage(*stage.layers, stage.submesh, config_of_stage(stage), stage.hosts) for stage in plan.stages]


@final
@dataclasses.dataclass(frozen=True)
class GivenStages(Chooser):
    """A chooser of given stages, in the order of the layers, as the only plan, whether or not they fit into memory.

    `choose` raises ValueError for stages that don't cover the layers one after the other, or on hosts or devices that
    there aren't; NoPlanError for submeshes that don't fit the hosts.
    """

    stages: tuple[GivenStage, ...]

    def choose(self, task: PlanningTask, clock: Clock) -> Found:
        """Returns the given stages as the only candidate plan, costed and simulated."""
        (layers,), (count,) = task.layers, task.micro_batches
        model = task.source.exact(layers, task.micro_batch(count))
        clock.lap("features")
        candidate = given_candidate(task, model, Run(count, task.schedule), self.stages)
        clock.lap("cost table")
        return Found([candidate])


def given_candidate(task: PlanningTask, model: Model, run: Run, stages: Sequence[GivenStage]) -> Candidate:
    """Returns the candidate plan that given stages make, costed and simulated on only the hosts that they name."""
    covered = [layer for stage in stages for layer in range(stage.first, stage.last + 1)]
    if covered != list(range(model.num_layers)):
        ranges = [(stage.first, stage.last) for stage in stages]
        raise ValueError(f"the stages have layers {ranges}, but must cover 0..{model.num_layers - 1} in order")
    stages = meant_stages(task.cluster, stages, run.form.chunks)
    cluster, hosts = _used_part(task.cluster, stages)
    unlike = any(kinds_of(cluster)) and hosts is not None
    places = [(stage.submesh, hosts[n] if unlike and hosts else ()) for n, stage in enumerate(stages)]
    sites = list(dict.fromkeys(places))
    rows = [_unique([stage.config for stage, place in zip(stages, places, strict=True) if place == s]) for s in sites]
    on = tuple(on for _, on in sites) if unlike else None
    space = SearchSpace(tuple(submesh for submesh, _ in sites), _padded(rows), hosts=on)
    choices = tuple(
        StageChoice(stage.first, stage.last, n, rows[n].index(stage.config))
        for stage, place in zip(stages, places, strict=True)
        for n in [sites.index(place)]
    )
    costs = priced(task, model, cluster, space, run, partial=True)
    on_submeshes, chunks = run.on_submeshes(choices), choices if run.form.chunks > 1 else ()
    hosts = hosts and run.on_submeshes(hosts)
    return simulated(Candidate(costs, Slicing(on_submeshes, 0.0, 0.0, 0, 0.0), hosts=hosts, chunks=chunks))


def meant_stages(cluster: Cluster, stages: Sequence[GivenStage], chunks: int = 1) -> list[GivenStage]:
    """Returns given stages on the hosts of a cluster of alike hosts with other names, of which it has as many; others
    as they are. Each submesh has `chunks` of the stages. Raises ValueError for hosts, devices or options that there
    aren't, or logical meshes of another size than the submesh.
    """
    devices = {host.name: host.num_devices for host in cluster.hosts}
    named = dict.fromkeys(name for stage in stages for name in stage.hosts or ())
    if len(named) <= len(devices) and not named.keys() & devices.keys() and not any(kinds_of(cluster)):
        meant = dict(zip(named, devices, strict=False))
        stages = [
            dataclasses.replace(stage, hosts=stage.hosts and tuple(meant[name] for name in stage.hosts))
            for stage in stages
        ]
    differences = "; ".join(stage_differences(stages, devices, cluster.name, [*devices.values()], chunks))
    if differences:
        raise ValueError(
            f"the plan doesn't fit {cluster.name}: {differences}; plan again for this cluster, or give its own"
        )
    return list(stages)


def _used_part(cluster: Cluster, stages: Sequence[GivenStage]) -> tuple[Cluster, tuple[tuple[int, ...], ...] | None]:
    """Returns the part that given stages are on, and each stage's hosts in it; all and None if one names no hosts."""
    if any(stage.hosts is None for stage in stages):
        return cluster, None
    used = {name for stage in stages for name in stage.hosts or ()}
    part = part_of(cluster, [n for n, host in enumerate(cluster.hosts) if host.name in used])
    numbers = part.host_numbers
    return part, tuple(tuple(numbers[name] for name in stage.hosts or ()) for stage in stages)


def part_of(cluster: Cluster, hosts: Sequence[int]) -> Cluster:
    """Returns a cluster of some hosts of another one; the other one itself where its devices share one CPU."""
    return cluster if len(hosts) == len(cluster.hosts) or cluster.shared else cluster.part(hosts)


def on_used_hosts(task: PlanningTask, candidate: Candidate, names: Sequence[Sequence[str]]) -> Candidate:
    """Returns a candidate plan costed anew on the named hosts of its stages, as if the plan had been given."""
    space = candidate.space
    stages = [
        GivenStage(stage.first, stage.last, space.submeshes[stage.submesh], space.config(stage), tuple(on))
        for stage, on in zip(candidate.stages, names, strict=True)
    ]
    again = given_candidate(task, candidate.model, candidate.run, stages)
    slicing = dataclasses.replace(candidate.slicing, stages=again.slicing.stages)
    costs = dataclasses.replace(again.costs, exact=candidate.costs.exact)
    return dataclasses.replace(again, slicing=slicing, costs=costs)


def used_configs(candidate: Candidate) -> SearchSpace:
    """Returns the search space that has only the submeshes and configs of a candidate's stages."""
    space, stages = candidate.space, candidate.stages
    used = dict.fromkeys(stage.submesh for stage in stages)
    rows = [_unique([space.config(stage) for stage in stages if stage.submesh == s]) for s in used]
    submeshes, hosts = tuple(space.submeshes[s] for s in used), space.hosts and tuple(space.hosts[s] for s in used)
    return SearchSpace(submeshes, _padded(rows), space.allowed_imbalance, hosts)


def _unique(configs: Sequence[MeshConfig]) -> list[MeshConfig]:
    """Each config once: options are a mapping, so configs have no hash that tells all of them apart."""
    return [config for n, config in enumerate(configs) if config not in configs[:n]]


def _padded(rows: Sequence[Sequence[MeshConfig]]) -> tuple[tuple[MeshConfig | None, ...], ...]:
    width = max(map(len, rows))
    return tuple((*row, *[None] * (width - len(row))) for row in rows)


def stage_differences(
    stages: Sequence[GivenStage], devices: Mapping[str, int], cluster: str, counts: Sequence[int], chunks: int = 1
) -> Iterator[str]:
    """Yields a sentence for each host, device, mesh or option of given stages that the cluster or Alpa doesn't have:
    `devices` are those of each host by name, `counts` those of each host; `chunks` stages share each submesh.
    """
    for n, stage in enumerate(stages):
        hosts, shape = stage.hosts, stage.submesh
        if hosts is not None:
            for host in hosts:
                if host not in devices:
                    yield f"stage {n} is on host {host!r}, but {cluster} has {', '.join(map(repr, devices))}"
            if min((devices.get(host, shape.devices_per_host) for host in hosts), default=0) < shape.devices_per_host:
                has = counts_text(counts) + ("" if "[" in counts_text(counts) else " devices")
                yield (
                    f"stage {n} is on {shape.num_hosts} hosts with {shape.devices_per_host} devices each, but "
                    f"{cluster} has {has}"
                )
                return
            if len(set(hosts)) != shape.num_hosts or len(hosts) != shape.num_hosts:
                yield f"stage {n} is on {shape.num_hosts} hosts, but names {list(hosts)}"
        if math.prod(stage.config.shape) != shape.num_devices:
            mesh = mesh_text(stage.config.shape)
            yield f"stage {n} has the logical mesh {mesh}, but its submesh has {shape.num_devices} devices"
        yield from _option_differences(n, stage)
    used: collections.Counter[str] = collections.Counter()
    for stage in stages[: len(stages) // chunks]:
        used.update(dict.fromkeys(stage.hosts or (), stage.submesh.devices_per_host))
    for host, count in used.items():
        if count > devices.get(host, count):
            yield f"its stages take {count} devices of host {host!r}, which has {devices[host]}"


def counts_text(counts: Sequence[int]) -> str:
    """Returns in words how many hosts there are, and how many devices each has.

    >>> counts_text([4, 4]), counts_text([4, 2])
    ('2 hosts of 4', 'hosts of [4, 2] devices')
    """
    return f"hosts of {list(counts)} devices" if len(set(counts)) > 1 else f"{len(counts)} hosts of {counts[0]}"


def _option_differences(n: int, stage: GivenStage) -> Iterator[str]:
    """Yields sentences that say which auto-sharding options of a stage Alpa hasn't, or not with such a value."""
    axes = len(stage.config.shape)
    for name, value in stage.config.options.items():
        if name not in _OPTIONS:
            yield f"stage {n} has the auto-sharding option {name!r}, which Alpa hasn't{near(name, _OPTIONS)}"
            continue
        kind, words = _OPTIONS[name]
        # -1 and None are Alpa's words for no axis.
        right = type(value) is kind if name != _AXIS else value is None or (type(value) is int and -1 <= value < axes)
        if not right:
            yield f"stage {n} has the auto-sharding option {name}={value!r}, but it must be {words}"
