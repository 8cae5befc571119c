"""Which of Alpa's hosts a plan means by its names, and whether they have what it asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from alpa_dejavu._alpa._cluster import alpa_hosts, equal_hosts, host_names
from alpa_dejavu.problem import Cluster, Plan

_NUMBERED = re.compile(r"(.*)[-:](\d+)")
_COUNTED = re.compile(r"(\d+) x ")


def places(plan: Plan, mesh: Any, cluster: object = None) -> list[tuple[int, ...]]:
    """For each stage the numbers of its hosts, where `cluster_differences` finds none."""
    numbers = _numbers(plan, mesh, cluster)
    return [tuple(numbers[host] for host in stage.hosts) for stage in plan.stages]


def cluster_differences(plan: Plan, mesh: Any, cluster: object = None) -> Iterator[str]:
    """What a plan asks for that Alpa's virtual mesh hasn't.

    Args:
        plan: that is to run.
        mesh: Alpa's virtual mesh.
        cluster: what the stage option says of it: a `Cluster` has the names of its hosts; anything else: those that
            Ray knows.
    """
    counts = [host.num_devices for host in alpa_hosts(mesh)]
    there = f"hosts of {counts} devices" if len(set(counts)) > 1 else f"{len(counts)} hosts of {counts[0]}"
    names, numbers = _names(mesh, cluster), _numbers(plan, mesh, cluster)
    if plan.num_devices != sum(counts) and not _may_leave_some(plan, mesh, names):
        yield f"it is for {plan.num_devices} devices, but the cluster has {sum(counts)} ({there})"
    for n, stage in enumerate(plan.stages):
        shape = stage.submesh
        for host in stage.hosts:
            if host not in numbers:
                yield f"stage {n} is on host {host!r}, but the cluster has {', '.join(map(repr, names))}"
        found = [counts[numbers[host]] for host in stage.hosts if host in numbers]
        if min(found, default=shape.devices_per_host) < shape.devices_per_host:
            there = f"the cluster has {there}" + ("" if "[" in there else " devices")
            yield f"stage {n} is on {shape.num_hosts} hosts with {shape.devices_per_host} devices each, but {there}"
            return
        if len(set(stage.hosts)) != shape.num_hosts or len(stage.hosts) != shape.num_hosts:
            yield f"stage {n} is on {shape.num_hosts} hosts, but names {list(stage.hosts)}"
    for host, count in plan.devices_of_hosts.items():
        if host in numbers and count > counts[numbers[host]]:
            yield f"its stages take {count} devices of host {host!r}, which has {counts[numbers[host]]}"


def running_differences(plan: Plan, mesh: Any, cluster: object = None) -> Iterator[str]:
    """Where the stages of a plan are on other hosts than the meshes that run already, which it would be given."""
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
    """Numbers of hosts by their names."""
    if isinstance(cluster, Cluster):
        every = range(len(alpa_hosts(mesh)))
        meant = every if len(cluster.hosts) == len(every) else equal_hosts(mesh)
        return {host.name: number for host, number in zip(cluster.hosts, meant, strict=False)}
    return {name: number for number, name in enumerate(host_names(mesh))}


def _numbers(plan: Plan, mesh: Any, cluster: object) -> dict[str, int]:
    """The number of each of the plan's hosts that is there.

    Hosts of a machine type are equal and have numbers for names: there the number is meant.
    """
    names, equal = _names(mesh, cluster), equal_hosts(mesh)
    wanted = {host for stage in plan.stages for host in stage.hosts}
    known = {name: number for name, number in names.items() if name in wanted}
    if known:
        return known
    numbered = {host: match for host in wanted if (match := _NUMBERED.fullmatch(host))}
    if len(numbered) == len(wanted) and len({match[1] for match in numbered.values()}) == 1:
        places = {host: int(match[2]) for host, match in numbered.items()}
        return {host: equal[place] for host, place in places.items() if place < len(equal)}
    return dict.fromkeys(wanted, equal[0]) if len(wanted) == len(equal) == 1 else {}


def _may_leave_some(plan: Plan, mesh: Any, names: Mapping[str, int]) -> bool:
    """Whether a plan that doesn't take all devices is for this cluster.

    It is by its hosts' names; or, of a machine type, if it is for as many hosts and takes those whole that it takes.
    """
    wanted = {host for stage in plan.stages for host in stage.hosts}
    counted = _COUNTED.match(plan.cluster)
    if counted and not wanted <= set(names):
        whole = plan.num_devices == len(wanted) * int(mesh.num_devices_per_host)
        return whole and int(counted[1]) == len(equal_hosts(mesh))
    return wanted <= set(names)
