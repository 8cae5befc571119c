"""Plans again for a cluster that has changed, or may: from the plan's contingencies, or what was kept beside it.

Nothing is traced, and no mesh is solved again, so that it takes a second on a few hosts.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Collection, Mapping
from typing import final

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu._util.near_names import near
from alpa_dejavu._util.phases import phase
from alpa_dejavu.calibration import Calibration
from alpa_dejavu.clusters.changed_cluster import slowed
from alpa_dejavu.clusters.changed_cluster import without as without_hosts
from alpa_dejavu.clusters.host_classes import hosts_by_names
from alpa_dejavu.costs.communication import CommunicationModel
from alpa_dejavu.costs.latency import LatencyModel
from alpa_dejavu.planning import plan as best_plan
from alpa_dejavu.planning.changed._contingencies import with_contingencies
from alpa_dejavu.planning.changed.kept import Kept
from alpa_dejavu.planning.changed.kept_task import KeptSpace, kept_prices, kept_task, with_free_divisions
from alpa_dejavu.planning.changed.state_migration import devices_of, layer_state, moves
from alpa_dejavu.planning.search.given_stages import given_candidate, given_stages
from alpa_dejavu.problem import Cluster, Moves, NoPlanError, Plan, StagePlan, counted_name
from alpa_dejavu.problem.run import schedule_form
from alpa_dejavu.slicing import Slicer


@final
@dataclasses.dataclass(frozen=True)
class Replanned:
    """A plan that takes another one's place, with the training state that has to move between hosts for it."""

    plan: Plan  # the new plan, with the same layers and schedule
    moves: Moves  # the layers and bytes of training state that its hosts take in, coming from the plan before
    seconds: float
    kept: Kept | None = None  # what the new plan was made from, for planning once more; None for a contingency

    @property
    def kept_layers(self) -> tuple[int, ...]:
        """Returns the layers whose training state needn't move to another host under the new plan."""
        return tuple(sorted(set(range(self.plan.num_layers)) - set(self.moves.layers)))


def fallback(plan: Plan, host: str, checkpoint_bytes_per_s: float | None = None) -> Replanned:
    """Returns the contingency that a plan has for the loss of a host, as a plan with what moves for it, from
    checkpoints at the given rate (None: as the plan was made for). Raises ValueError if it has none.
    """
    started = time.perf_counter()
    _check_hosts(plan, [host])
    if host not in plan.contingencies:
        raise ValueError(
            f"the plan has no contingency for the loss of {host}; plan again for the hosts that are left, and with "
            "--contingencies or --json to be ready for the next loss"
        )
    other = plan.contingencies[host]
    left = None if plan.hardware is None else plan.hardware.without([host])
    machine = (left or hosts_by_names(plan)).machine
    count = len({name for stage in other.stages for name in stage.hosts} if left is None else left.hosts)
    name = counted_name(count, machine) if machine else plan.cluster
    ready = f"what the plan on {plan.cluster} has ready for the loss of {host}"
    unused = f"unused, since no choice of submeshes can use them up too: {', '.join(other.unused)}"
    notes = (ready, unused) if other.unused else (ready,)
    following = dataclasses.replace(
        plan, stages=other.stages, step_s=other.step_s, num_micro_batches=other.num_micro_batches, lower_bound_s=0.0,
        confidence=None, notes=notes, cluster=name, planning_s={}, contingencies={}, hardware=left,
    )  # fmt: skip
    return Replanned(following, other.moves.read_at(checkpoint_bytes_per_s), time.perf_counter() - started)


def prepared(plan: Plan, kept: Kept, calibration: str | os.PathLike[str] | Calibration | None = None) -> Plan:
    """Returns a plan with a contingency for the loss of each host, made from its record; the plan itself if it has some
    or one host. Raises ValueError if the record is of another plan, or the plan was priced by other models.
    """
    if plan.contingencies or len(kept.cluster.hosts) == 1:
        return plan
    started = time.perf_counter()
    task = kept_task(plan, kept, kept_prices(plan, kept, calibration=calibration), other_counts=True)
    task = dataclasses.replace(task, before=None)  # each loss is of the plan's own hosts
    phase("the loss of a host")
    with collector_paused():
        own = given_candidate(task, kept.model, kept.run, given_stages(plan))
        ready = with_contingencies(plan, task, [own])
    seconds = {"contingencies": time.perf_counter() - started}
    return dataclasses.replace(ready, planning_s={**plan.planning_s, **seconds})


def replan(
    plan: Plan,
    kept: Kept,
    *,
    without: Collection[str] = (),
    without_replicas: Collection[int] = (),
    cluster: Cluster | None = None,
    slow: Mapping[str, float] | None = None,
    slicing: str | Slicer = "dynamic",
    latency: str | LatencyModel = "auto",
    communication: str | CommunicationModel = "auto",
    calibration: str | os.PathLike[str] | Calibration | None = None,
    memory_margin: float | None = None,
    checkpoint_bytes_per_s: float | None = None,
) -> Replanned:
    """Returns the best plan for a changed cluster, on those hosts that have most of the training state they need.

    Layers and schedule stay as they are, and degrees of parallelism that were asked for where that fits. Where a least
    number of replicas was asked for, and no longer fits without the lost devices, it is the largest lower one that
    does. The number of micro-batches may change, if the user hadn't asked for the old plan's: neighbouring numbers are
    tried as long as the step gets shorter. The model is then scaled, since nothing is traced. Logical meshes for which
    it isn't known how the layers are sharded are left out. The new plan says so.

    Args:
        plan: the plan that ran.
        kept: the record of what it was made from, as `alpa_dejavu.planning.changed.kept.read_kept` reads it.
        without: names of hosts that are lost, and devices such as "host-1/3", by their number on their host.
        without_replicas: numbers of data-parallel replicas that are left out of each stage, with the devices that they
            are on, as `alpa_dejavu.training.robust.Suspects` proposes them; so much lower is the least number of them.
        cluster: the new cluster, in which equal names mean the same hosts; None: the plan's.
        slow: by the names of slow hosts, how many times as long as predicted their devices take.
        slicing: a slicer or its name.
        latency, communication, calibration: what priced the plan, as for `kept_prices`.
        memory_margin: the share of the memory that is left free where no peaks were measured; None: as the plan's was.
        checkpoint_bytes_per_s: the rate at which all hosts together read a checkpoint; None: the cluster's.

    Raises:
        ValueError: a host or replica that the plan hasn't, a record of another plan, other models than the plan's,
            nothing that has changed, or a memory_margin that isn't at least 0 and below 1.
        NoPlanError: nothing fits.
    """
    started = time.perf_counter()
    if without_replicas:
        without = (*without, *replica_devices(plan, without_replicas))
        kept = kept.with_replicas(max(kept.rules.replicas - len(set(without_replicas)), 1))
    if not without and cluster is None and not slow and memory_margin is None:
        raise ValueError("nothing has changed: name hosts that are lost or slow, the new cluster, or a memory margin")
    prices = kept_prices(plan, kept, cluster, latency, communication, calibration)
    changed = prices.cluster
    _check_hosts(plan, [*without, *(slow or {})], [host.name for host in changed.hosts])
    if without:
        changed = without_hosts(changed, without)
    for host, factor in (slow or {}).items():
        changed = slowed(changed, host, factor)
    if checkpoint_bytes_per_s is not None:
        changed = dataclasses.replace(changed, checkpoint_bytes_per_s=checkpoint_bytes_per_s)
    if memory_margin is not None:
        kept = dataclasses.replace(kept, memory_margin=memory_margin)
    asked, asked_divisions = kept.rules.replicas, kept.rules.divisions
    prices, refused = dataclasses.replace(prices, cluster=changed), list[NoPlanError]()
    free = with_free_divisions(kept)
    records = [kept.with_replicas(replicas) for replicas in range(asked, 0 if without else asked - 1, -1)]
    records += [free] if free.rules.divisions != kept.rules.divisions else []
    for kept in records:
        task = kept_task(plan, kept, prices, slicing, other_counts=True)
        try:
            planned = best_plan(task)
            break
        except NoPlanError as error:
            refused.append(error)
    else:
        raise refused[0]
    assert isinstance(task.space, KeptSpace), "it was made so"
    following, count = planned.plan, planned.run.num_micro_batches
    if plan.correction is not None:
        from alpa_dejavu.calibration.history import corrected

        following = corrected(following, plan.correction)
    missing = task.space.missing(changed, kept.batch // count)
    notes = [f"{missing} logical meshes that planning never looked at are left out"] if missing else []
    if kept.rules.divisions != asked_divisions:
        notes.append("degrees of parallelism that were asked for are chosen anew, as nothing fits with them")
    if (replicas := kept.rules.replicas) != asked:
        notes.append(f"at least {replicas} replicas of each stage: {asked} don't fit without the lost devices")
    if count != plan.num_micro_batches:
        traced = {kept.batch // samples for samples in kept.by_samples}
        how = ", whose seconds are scaled to these" if task.source.scales and count not in traced else ""
        notes.append(f"{count} micro-batches instead of {plan.num_micro_batches}{how}")
    form, state = schedule_form(plan.schedule), layer_state(planned.model)
    moved = moves(plan.stages, following.stages, changed, state, form=form)
    seconds = time.perf_counter() - started
    following = dataclasses.replace(following, notes=(*notes, *following.notes), planning_s={"planning again": seconds})
    next_kept = dataclasses.replace(kept, model=planned.model, run=planned.run, cluster=changed, others=kept.by_samples)
    return Replanned(following, moved, seconds, next_kept)


def _check_hosts(plan: Plan, lost: Collection[str], more: Collection[str] = ()) -> None:
    hosts = dict.fromkeys([*plan.contingencies, *(host for stage in plan.stages for host in stage.hosts), *more])
    for name in lost:
        if name not in hosts and name.rpartition("/")[0] not in hosts:
            names = ", ".join(hosts) if len(hosts) <= 8 else f"{', '.join(list(hosts)[:3])} ... ({len(hosts)} hosts)"
            raise ValueError(f"the plan on {plan.cluster} has no host {name!r}{near(name, hosts)}; it has {names}")


def replica_devices(plan: Plan, replicas: Collection[int]) -> tuple[str, ...]:
    """Returns the devices of some replicas of all stages, such as "host-1/3", as `replan(without=...)` takes them.

    Replicas are numbered from 0, as `alpa_dejavu.training.robust.Suspects` has them. Raises ValueError if there is no
    such replica, all are named, or stages have unlike numbers of replicas.
    """
    names: dict[str, None] = {}
    for stage, places in zip(plan.stages, devices_of(plan.stages, schedule_form(plan.schedule)), strict=True):
        devices = [f"{host}/{places[host][0] + n}" for host in stage.hosts for n in range(places[host][1])]
        names |= dict.fromkeys(devices[n] for n in replica_positions(plan, stage, replicas))
    return tuple(names)


def replica_positions(plan: Plan, stage: StagePlan, replicas: Collection[int]) -> list[int]:
    """Returns the positions, in a stage's submesh, of some replicas' devices; ValueError as for `replica_devices`."""
    counts = {other.logical_mesh[0] for other in plan.stages}
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
    size = stage.submesh.num_devices // count
    return [replica * size + n for replica in sorted(set(replicas)) for n in range(size)]
