"""Finds the devices that data-parallel replicas of a plan's stages are on, as those that are to be left out."""

from __future__ import annotations

from collections.abc import Collection

from alpa_dejavu.planning.state_migration import devices_of
from alpa_dejavu.problem import Plan, StagePlan
from alpa_dejavu.problem.run import schedule_form

__all__ = ["replica_devices", "replica_positions"]


def replica_devices(plan: Plan, replicas: Collection[int]) -> tuple[str, ...]:
    """Returns the devices of some replicas of all stages, such as "host-1/3", as `replan(without=...)` takes them.

    Args:
        plan: the plan, with equally many data-parallel replicas of each stage.
        replicas: the numbers of replicas, from 0, as `alpa_dejavu.training.robust.Suspects` has them.

    Raises:
        ValueError: there is no such replica, all are named, or stages have unlike numbers of replicas.
    """
    places = devices_of(plan.stages, schedule_form(plan.schedule))
    found: list[str] = []
    for stage, taken in zip(plan.stages, places, strict=True):
        devices = [f"{host}/{taken[host][0] + n}" for host in stage.hosts for n in range(taken[host][1])]
        found += [devices[n] for n in replica_positions(plan, stage, replicas)]
    return tuple(dict.fromkeys(found))


def replica_positions(plan: Plan, stage: StagePlan, replicas: Collection[int]) -> list[int]:
    """Returns the positions, in a stage's submesh, of the devices of some of its replicas.

    Raises:
        ValueError: there is no such replica, all are named, or stages have unlike numbers of replicas.
    """
    counts = {each.logical_mesh[0] for each in plan.stages}
    if len(counts) > 1:
        raise ValueError(f"the plan's stages have {', '.join(map(str, sorted(counts)))} replicas, but must have "
                         "equally many to leave one out of all; name devices, such as --without HOST/3")  # fmt: skip
    (count,) = counts
    for replica in replicas:
        if not 0 <= replica < count:
            raise ValueError(f"replica is {replica}, but must be one of the plan's 0..{count - 1}; give one of these")
    if len(set(replicas)) == count:
        raise ValueError(f"replicas are {', '.join(map(str, sorted(set(replicas))))}, which are all of the plan's, but "
                         "one must be left; leave out fewer")  # fmt: skip
    each = stage.submesh.num_devices // count
    return [replica * each + n for replica in sorted(set(replicas)) for n in range(each)]
