"""Plans again for a cluster that has changed: from the plan's contingencies, or from what was kept beside it.

Nothing is traced, and no mesh is solved again, so that it takes a second on a few hosts.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Collection, Mapping
from typing import final

from alpa_dejavu._util.near_names import near
from alpa_dejavu.calibration import Calibration
from alpa_dejavu.clusters.changed_cluster import slowed
from alpa_dejavu.clusters.changed_cluster import without as without_hosts
from alpa_dejavu.clusters.hosts_by_names import hosts_by_names
from alpa_dejavu.costs.communication import CommunicationModel
from alpa_dejavu.costs.latency import LatencyModel
from alpa_dejavu.planning import plan as best_plan
from alpa_dejavu.planning.kept import Kept
from alpa_dejavu.planning.kept_task import KeptSpace, kept_prices, kept_task
from alpa_dejavu.planning.state_migration import layer_state, moves
from alpa_dejavu.problem import Cluster, Moves, Plan, counted_name
from alpa_dejavu.slicing import Slicer

__all__ = ["Replanned", "fallback", "replan"]


@final
@dataclasses.dataclass(frozen=True)
class Replanned:
    """A plan that takes another one's place, with the training state that has to move between hosts for it.

    Attributes:
        plan: the new plan, with the same layers and schedule.
        moves: what its hosts take in, coming from the plan before.
        seconds: the wall time that it took to plan, but for the plan's own contingencies.
        kept: what planning again from here needs; None for a contingency.
    """

    plan: Plan
    moves: Moves
    seconds: float
    kept: Kept | None = None

    @property
    def kept_layers(self) -> tuple[int, ...]:
        """Returns the layers whose training state needn't move to another host under the new plan."""
        return tuple(sorted(set(range(self.plan.num_layers)) - set(self.moves.layers)))


def fallback(plan: Plan, host: str) -> Replanned:
    """Returns the contingency that a plan holds ready for the loss of a host, as a plan with what moves for it.

    Raises:
        ValueError: the plan isn't for that host, or has nothing ready.
    """
    started = time.perf_counter()
    _check_hosts(plan, [host], [])
    if host not in plan.contingencies:
        raise ValueError(f"the plan has no contingency for the loss of {host}; plan again for the hosts that are left")
    other = plan.contingencies[host]
    left = None if plan.hardware is None else plan.hardware.without([host])
    machine = (left or hosts_by_names(plan)).machine
    count = len({name for stage in other.stages for name in stage.hosts} if left is None else left.hosts)
    name = counted_name(count, machine) if machine else plan.cluster
    ready = f"what the plan on {plan.cluster} has ready for the loss of {host}"
    unused = f"unused, since no choice of submeshes can use them up too: {', '.join(other.unused)}"
    notes = (ready, unused) if other.unused else (ready,)
    made = dataclasses.replace(
        plan, stages=other.stages, step_s=other.step_s, num_micro_batches=other.num_micro_batches, lower_bound_s=0.0,
        confidence=None, notes=notes, cluster=name, planning_s={}, contingencies={}, hardware=left,
    )  # fmt: skip
    return Replanned(made, other.moves, time.perf_counter() - started)


def replan(
    plan: Plan,
    kept: Kept,
    *,
    without: Collection[str] = (),
    cluster: Cluster | None = None,
    slow: Mapping[str, float] | None = None,
    slicing: str | Slicer = "dynamic",
    latency: str | LatencyModel = "auto",
    communication: str | CommunicationModel = "auto",
    calibration: str | os.PathLike[str] | Calibration | None = None,
    memory_margin: float | None = None,
) -> Replanned:
    """Returns the best plan for a changed cluster, on those hosts that have most of the training state they need.

    Layers and schedule stay as they are. Of the numbers of micro-batches the best one is looked for, uphill from the
    plan's; the model is scaled to others, since nothing is traced. Logical meshes that planning never looked at are
    left out. The new plan says so.

    Args:
        plan: that ran.
        kept: what it was made from (`alpa_dejavu.planning.kept.read_kept`).
        without: names of hosts that are lost.
        cluster: the new cluster, in which equal names mean the same hosts; None: the plan's.
        slow: hosts that take so many times as long as their figures say.
        slicing: a slicer or its name.
        latency: the model that priced the plan, or its name.
        communication: likewise; "auto": as it was, where that had a name.
        calibration: likewise, in place of both.
        memory_margin: the share of the memory that is left free where no peaks were measured; None: as the plan's was.

    Raises:
        ValueError: a host that the cluster hasn't, what is kept of another plan, other models than the plan's,
            nothing that has changed, or a memory_margin that isn't at least 0 and below 1.
        NoPlanError: nothing fits.
    """
    started = time.perf_counter()
    if not without and cluster is None and not slow:
        raise ValueError("nothing has changed: name hosts that are lost or slow, or the new cluster")
    given = kept_prices(plan, kept, cluster, latency, communication, calibration)
    changed = given.cluster
    _check_hosts(plan, [*without, *(slow or {})], [host.name for host in changed.hosts])
    if without:
        changed = without_hosts(changed, without)
    for host, factor in (slow or {}).items():
        changed = slowed(changed, host, factor)
    if memory_margin is not None:
        kept = dataclasses.replace(kept, memory_margin=memory_margin)
    task = kept_task(plan, kept, dataclasses.replace(given, cluster=changed), slicing, other_counts=True)
    planned = best_plan(task)
    made, count = planned.plan, planned.run.num_micro_batches
    ahead = made.planning_s.get("contingencies", 0.0)
    if plan.correction is not None:
        from alpa_dejavu.calibration.history import corrected

        made = corrected(made, plan.correction)
    assert isinstance(task.space, KeptSpace), "it was made so"
    missing = task.space.missing(changed, kept.batch // count)
    notes = [f"{missing} logical meshes that planning never looked at are left out"] if missing else []
    if count != plan.num_micro_batches:
        notes.append(f"{count} micro-batches instead of {plan.num_micro_batches}, priced by a model that was scaled")
    moved = moves(plan.stages, made.stages, changed, layer_state(planned.model))
    seconds = time.perf_counter() - started - ahead
    made = dataclasses.replace(
        made, notes=(*notes, *made.notes), planning_s={"planning again": seconds, "contingencies": ahead}
    )
    next_kept = dataclasses.replace(kept, model=planned.model, run=planned.run, cluster=changed)
    return Replanned(made, moved, seconds, next_kept)


def _check_hosts(plan: Plan, lost: Collection[str], more: Collection[str]) -> None:
    known = dict.fromkeys([*plan.contingencies, *(host for stage in plan.stages for host in stage.hosts), *more])
    for name in lost:
        if name not in known:
            names = ", ".join(known) if len(known) <= 8 else f"{', '.join(list(known)[:3])} ... ({len(known)} hosts)"
            raise ValueError(f"the plan on {plan.cluster} has no host {name!r}{near(name, known)}; it has {names}")
