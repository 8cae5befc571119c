"""Which of Alpa's hosts a plan means by its names, whether they have what it asks for, and its stages put on them."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from alpa_dejavu.alpa.ray_cluster import alpa_hosts, equal_hosts, host_names
from alpa_dejavu.clusters.host_classes import hosts_by_names
from alpa_dejavu.exports.alpa_code import remat_layers
from alpa_dejavu.planning import given_stages
from alpa_dejavu.planning.search.given_stages import counts_text, stage_differences
from alpa_dejavu.problem import Cluster, ClusterSummary, Plan
from alpa_dejavu.problem.run import ALPA_SCHEDULES


def places(plan: Plan, mesh: Any, cluster: object = None) -> list[tuple[int, ...]]:
    """Returns for each stage of a plan that fits the numbers of its hosts in Alpa's cluster, by the hosts' names."""
    numbers = _numbers(plan, mesh, cluster)
    return [tuple(numbers[host] for host in stage.hosts) for stage in plan.stages]


def cluster_differences(plan: Plan, mesh: Any, cluster: object = None) -> Iterator[str]:
    """Yields sentences on what a plan asks for that the cluster of Alpa's virtual mesh, or Alpa, doesn't have."""
    counts = [host.num_devices for host in alpa_hosts(mesh)]
    names, numbers = _names(mesh, cluster), _numbers(plan, mesh, cluster)
    if plan.num_devices != sum(counts) and not _may_leave_some(plan, mesh, names):
        yield f"it is for {plan.num_devices} devices, but the cluster has {sum(counts)} ({counts_text(counts)})"
    devices = {name: counts[number] for name, number in (names | numbers).items()}
    yield from stage_differences(given_stages(plan), devices, "the cluster", counts)


def running_differences(plan: Plan, mesh: Any, cluster: object = None) -> Iterator[str]:
    """Yields a sentence if another pipeline already runs on Alpa's virtual mesh, with its stages on other hosts."""
    group = mesh.launched_physical_mesh_group
    if group is None:
        return
    hosts, wanted = alpa_hosts(mesh), places(plan, mesh, cluster)
    running = [tuple(dict.fromkeys(launched.host_ids)) for launched in group.meshes]
    asked = [tuple(hosts[number].host_id for number in numbers) for numbers in wanted]
    if running != asked:
        yield (
            f"its stages are on the hosts numbered {asked}, but another pipeline has its workers on {running} already: "
            "call alpa.shutdown() and alpa.init() first"
        )


def _names(mesh: Any, cluster: object) -> dict[str, int]:
    """Returns the numbers of hosts by their names."""
    if isinstance(cluster, Cluster):
        every = range(len(alpa_hosts(mesh)))
        meant = every if len(cluster.hosts) == len(every) else equal_hosts(mesh)
        return {host.name: number for host, number in zip(cluster.hosts, meant, strict=False)}
    return {name: number for number, name in enumerate(host_names(mesh))}


def _numbers(plan: Plan, mesh: Any, cluster: object) -> dict[str, int]:
    """Returns the number of each of the plan's hosts that is there; by order, if as many are alike and unknown."""
    names, equal = _names(mesh, cluster), equal_hosts(mesh)
    wanted = {host for stage in plan.stages for host in stage.hosts}
    numbers = {name: number for name, number in names.items() if name in wanted}
    if numbers:
        return numbers
    hardware = _hardware(plan, mesh)
    if not hardware.alike or len(hardware.hosts) != len(equal):
        return {}
    return {host.name: number for host, number in zip(hardware.hosts, equal, strict=True) if host.name in wanted}


def _hardware(plan: Plan, mesh: Any) -> ClusterSummary:
    """Returns the cluster that the plan is for; of an old plan, as far as its stages tell."""
    return plan.hardware or hosts_by_names(plan, len(equal_hosts(mesh)))


def _may_leave_some(plan: Plan, mesh: Any, names: Mapping[str, int]) -> bool:
    """Returns whether a plan that leaves devices is for this cluster: by its hosts' names, or those it takes whole."""
    devices = plan.devices_of_hosts
    if devices.keys() <= set(names):
        return True
    hardware = _hardware(plan, mesh)
    whole = plan.num_devices == len(devices) * int(mesh.num_devices_per_host)
    return whole and hardware.alike and len(hardware.hosts) == len(equal_hosts(mesh))


PARAMETERS = ("virtual_mesh", "submesh_shapes")

Places = Sequence[Sequence[int]]
"""For each stage the numbers of its hosts, in the order of `alpa_hosts`."""

_places: contextvars.ContextVar[Places | None] = contextvars.ContextVar("places", default=None)


def slicing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns Alpa's `get_sliced_virtual_submeshes`, wrapped: within `on_hosts(...)` stages get the hosts of a plan."""

    @functools.wraps(original)
    def get_sliced_virtual_submeshes(virtual_mesh: Any, submesh_shapes: Sequence[Sequence[int]]) -> Any:
        places = _places.get()
        if places is None:
            return original(virtual_mesh, submesh_shapes)
        return _sliced(virtual_mesh, submesh_shapes, places)

    return get_sliced_virtual_submeshes


@contextlib.contextmanager
def on_hosts(places: Places) -> Iterator[None]:
    """Has Alpa put each stage's submesh on hosts of the given numbers for the time of a `with` block."""
    token = _places.set(places)
    try:
        yield
    finally:
        _places.reset(token)


def _sliced(virtual_mesh: Any, shapes: Sequence[Sequence[int]], places: Places) -> list[Any]:
    """Slices hosts from the largest submeshes on, of equal ones the last, as Alpa; so powers of two are aligned."""
    hosts = alpa_hosts(virtual_mesh)
    used = [0] * len(hosts)
    submeshes: list[Any] = [None] * len(shapes)
    for n in sorted(range(len(shapes)), key=lambda n: (shapes[n][1], n), reverse=True):
        devices = shapes[n][1]
        own = [tuple(range(used[host], used[host] + devices)) for host in places[n]]
        for host in places[n]:
            used[host] += devices
        # Not by `slice_2d`: it looks a host's devices up by the host's place in the slice.
        submeshes[n] = type(virtual_mesh)(
            host_ids=[hosts[host].host_id for host in places[n]],
            host_info=[hosts[host].info for host in places[n]],
            num_devices_per_host=devices,
            parent=virtual_mesh,
            devices=own,
        )
    return submeshes


_REMAT = ("checkpoint", "remat", "remat2")


def checked(plan: str | os.PathLike[str] | Plan, arguments: Mapping[str, Any], cluster: object = None) -> Plan:
    """Returns a plan as it is, after checking that it fits the step and the cluster that Alpa constructs stages for.

    The arguments are those of Alpa's `cluster_layers_and_slice_mesh`. If `cluster` is no `Cluster` with the names of
    Alpa's hosts, Ray's names are taken. Raises ValueError with every difference.
    """
    assert isinstance(plan, Plan), "the option reads plan files when it is made"
    mesh = arguments["virtual_mesh"]
    differences = [*_of_step(plan, arguments), *cluster_differences(plan, mesh, cluster)]
    differences = differences or [*running_differences(plan, mesh, cluster)]
    if differences:
        name = f"the plan for {plan.model or 'a model'} on {plan.cluster} doesn't fit"
        raise ValueError(f"{name}: {'; '.join(differences)}; plan again for this step and cluster, or change them")
    return plan


def _of_step(plan: Plan, arguments: Mapping[str, Any]) -> Iterator[str]:
    if plan.schedule not in ALPA_SCHEDULES:
        yield f"its schedule is {plan.schedule!r}, but Alpa has only {', '.join(ALPA_SCHEDULES)}"
    elif not plan.runs_on_alpa:
        cannot = f"can't run what {plan.strategy} does" if plan.strategy else "has no reduction servers"
        cannot = "has no offload" if plan.offloads else cannot
        cannot = "has no streams beside computing" if plan.streams else cannot
        if not all(stage.plain for stage in plan.stages):
            cannot = "has no context, expert or hybrid sharded parallelism, and no selective remat"
        yield f"it is estimated only, since Alpa's runtime {cannot}"
    schedule, counted = arguments["pipeline_schedule"], arguments["layers"]
    num_layers = len(counted) if schedule == "inference" else len(counted) // 2
    if plan.num_layers != num_layers:
        yield f"it has {plan.num_layers} layers, but the step is cut into {num_layers}"
    if plan.schedule in ALPA_SCHEDULES and plan.schedule != schedule:
        yield f"its pipeline_schedule is {plan.schedule!r}, but here it is {schedule!r}"
    if plan.num_micro_batches != arguments["num_micro_batches"]:
        yield f"it has {plan.num_micro_batches} micro-batches, but here are {arguments['num_micro_batches']}"
    micro_batch = arguments["batch_size"]
    if (
        plan.batch is not None
        and micro_batch is not None
        and plan.batch != micro_batch * arguments["num_micro_batches"]
    ):
        yield f"it is for batches of {plan.batch}, but here they are of {micro_batch * arguments['num_micro_batches']}"
    if plan.num_layers == num_layers and schedule != "inference":
        backward = counted[::-1][:num_layers]
        for n, (stage, layers) in enumerate(zip(plan.stages, plan.layer_ids, strict=True)):
            equations = (equation for layer in layers for equation in backward[layer].closed_jaxpr().jaxpr.eqns)
            if stage.remat == "layer" and not any(equation.primitive.name in _REMAT for equation in equations):
                yield (
                    f"stage {n} has remat, but layers {layers[0]}..{layers[-1]} of the step haven't: give "
                    f"layer_option=DejavuLayerOption(remat_layers={remat_layers(plan)}, ...)"
                )
