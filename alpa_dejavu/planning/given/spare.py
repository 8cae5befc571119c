"""Finds what a plan leaves idle: devices that no stage is on, and the bubbles of those that have one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

from alpa_dejavu.planning.search._stage_times import timeline_of
from alpa_dejavu.problem import Cluster, Plan, Run
from alpa_dejavu.simulation.plan_times import plan_times


@final
@dataclasses.dataclass(frozen=True)
class Spare:
    """The devices and seconds that a plan leaves idle; the seconds are 0 where devices are parts of one CPU."""

    devices: Mapping[str, int] = dataclasses.field(hash=False)  # by host, those that no stage is on; no host without
    unused_device_s: float  # the device-seconds of these devices in a step: the whole step for each
    bubble_s: tuple[float, ...]  # for each submesh, the seconds of a step in which its devices wait for others
    bubble_device_s: float  # the device-seconds of a step in all bubbles


def spare(plan: Plan, cluster: Cluster) -> Spare:
    """Returns what a plan leaves idle. Raises ValueError if its cluster hasn't the plan's hosts or devices."""
    used, numbers = plan.devices_of_hosts, {host.name: host.num_devices for host in cluster.hosts}
    for host, count in used.items():
        if count > numbers.get(host, 0):
            raise ValueError(
                f"the plan takes {count} devices of the host {host!r}, but {cluster.name} has {numbers.get(host, 0)} "
                "of that name; give the cluster that the plan is for"
            )
    devices = {host: count - used[host] for host, count in numbers.items() if count > used[host]}
    if cluster.shared:
        return Spare(devices, 0.0, (0.0,) * len(plan.on_submeshes), 0.0)
    shares = timeline_of(plan_times(plan), cluster, Run(plan.num_micro_batches, plan.schedule)).bubble_shares
    bubble_s = tuple((shares * plan.step_s).tolist())
    bubbles = zip(plan.on_submeshes, bubble_s, strict=True)
    bubble_device_s = sum(stage.submesh.num_devices * seconds for stage, seconds in bubbles)
    return Spare(devices, sum(devices.values()) * plan.step_s, bubble_s, bubble_device_s)
