"""Another plan for a cluster that has changed: from the plan's contingencies, or from what was kept beside it.

Nothing is traced, and no mesh is solved again, so that it takes less than a second.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Collection, Mapping
from typing import final

from alpa_dejavu._diagnosis import no_plan
from alpa_dejavu._json_file import near
from alpa_dejavu._kept_search import best_candidate, following_plan, kept_costs, kept_prices
from alpa_dejavu.calibration import Calibration, Prices
from alpa_dejavu.changed_cluster import counted_name, fair_ratio, slowed
from alpa_dejavu.changed_cluster import without as without_hosts
from alpa_dejavu.communication import CommunicationModel
from alpa_dejavu.contingency import with_contingencies
from alpa_dejavu.kept import Kept
from alpa_dejavu.latency import LatencyModel
from alpa_dejavu.memory_margin import with_memory_note
from alpa_dejavu.micro_batch import with_micro_batch
from alpa_dejavu.moves import layer_state, moves
from alpa_dejavu.problem import Cluster, Moves, NoPlanError, Plan
from alpa_dejavu.search import Candidate, micro_batch_counts
from alpa_dejavu.slicing import Slicer, slicer

__all__ = ["Replanned", "fallback", "replan"]

_SMALLER = 2
"""So many more numbers of micro-batches are tried where memory is short."""


@final
@dataclasses.dataclass(frozen=True)
class Replanned:
    """The plan that follows another.

    Attributes:
        plan: with the same layers and schedule.
        moves: what its hosts take in, coming from the plan before.
        seconds: of wall time that it took to plan, but for the plan's own contingencies.
        kept: what planning again from here needs; None of what was ready.
    """

    plan: Plan
    moves: Moves
    seconds: float
    kept: Kept | None = None

    @property
    def kept_layers(self) -> tuple[int, ...]:
        """Those that stay where they are."""
        return tuple(sorted(set(range(self.plan.num_layers)) - set(self.moves.layers)))


def fallback(plan: Plan, host: str) -> Replanned:
    """What a plan has ready for the loss of a host.

    Raises:
        ValueError: the plan isn't for that host, or has nothing ready.
    """
    started = time.perf_counter()
    _check_hosts(plan, [host], [])
    if host not in plan.contingencies:
        raise ValueError(f"the plan has no contingency for the loss of {host}; plan again for the hosts that are left")
    other = plan.contingencies[host]
    hosts = {name for stage in other.stages for name in stage.hosts}
    ready = f"what the plan on {plan.cluster} has ready for the loss of {host}"
    unused = f"unused, since no choice of submeshes can use them up too: {', '.join(other.unused)}"
    notes = (ready, unused) if other.unused else (ready,)
    made = dataclasses.replace(
        plan, stages=other.stages, step_s=other.step_s, num_micro_batches=other.num_micro_batches, lower_bound_s=0.0,
        confidence=None, notes=notes, cluster=counted_name(plan.cluster, len(hosts)), planning_s={}, contingencies={},
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
    """The best plan on a cluster that has changed, on those hosts that have most of what they need.

    Layers and schedule stay as they are, and the number of micro-batches does unless memory has become so short that
    a step takes much longer than fewer devices explain: then smaller ones are tried too. Logical meshes that planning
    never looked at are left out. The new plan says so.

    Args:
        plan: that ran.
        kept: what it was made from (`alpa_dejavu.kept.read_kept`).
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
    search = slicer(slicing)
    made, chosen, moved = _planned(plan, kept, dataclasses.replace(given, cluster=changed), search)
    seconds = time.perf_counter() - started
    made = with_memory_note(with_contingencies(made, chosen, changed, search), chosen.table.margin, changed)
    ahead = time.perf_counter() - started - seconds
    made = dataclasses.replace(made, planning_s={"planning again": seconds, "contingencies": ahead})
    next_kept = dataclasses.replace(kept, model=chosen.model, run=chosen.run, cluster=changed)
    return Replanned(made, moved, seconds, next_kept)


def _check_hosts(plan: Plan, lost: Collection[str], more: Collection[str]) -> None:
    known = dict.fromkeys([*plan.contingencies, *(host for stage in plan.stages for host in stage.hosts), *more])
    for name in lost:
        if name not in known:
            names = ", ".join(known) if len(known) <= 8 else f"{', '.join(list(known)[:3])} ... ({len(known)} hosts)"
            raise ValueError(f"the plan on {plan.cluster} has no host {name!r}{near(name, known)}; it has {names}")


def _planned(plan: Plan, kept: Kept, given: Prices, search: Slicer) -> tuple[Plan, Candidate, Moves]:
    """The plan, what it is made of, and what moves."""
    cluster = given.cluster
    best, missing = _best(kept, given, search)
    fair = plan.uncorrected_s * fair_ratio(kept.cluster, cluster)
    # Where memory has become short, smaller micro-batches leave more of it.
    for count in [each for each in micro_batch_counts(kept.batch) if each > kept.run.num_micro_batches][:_SMALLER]:
        if isinstance(best, Candidate) and best.step_s <= fair:
            break
        other, unknown = _best(_divided(kept, count), given, search)
        if isinstance(other, Candidate) and (isinstance(best, NoPlanError) or other.step_s < best.step_s):
            best, missing = other, unknown
    if isinstance(best, NoPlanError):
        raise best
    made = following_plan(best, plan, cluster)
    if plan.correction is not None:
        from alpa_dejavu.history import corrected

        made = corrected(made, plan.correction)
    notes = [f"{missing} logical meshes that planning never looked at are left out"] if missing else []
    count = best.run.num_micro_batches
    if count != plan.num_micro_batches:
        notes.append(f"{count} micro-batches instead of {plan.num_micro_batches}, for memory's sake")
    made = dataclasses.replace(made, notes=tuple(notes))
    return made, best, moves(plan.stages, made.stages, cluster, layer_state(best.model))


def _divided(kept: Kept, count: int) -> Kept:
    """The same batch in another number of micro-batches."""
    model = with_micro_batch(kept.model, kept.run.num_micro_batches / count)
    return dataclasses.replace(kept, model=model, run=dataclasses.replace(kept.run, num_micro_batches=count))


def _best(kept: Kept, given: Prices, search: Slicer) -> tuple[Candidate | NoPlanError, int]:
    """The best plan, or why there is none; and how many logical meshes are left out."""
    costs = kept_costs(kept, given)
    best = best_candidate(kept, costs, given.cluster, search)
    if best is None:
        return no_plan(kept.model, given.cluster, costs.space, kept.run, costs.table, search), costs.missing
    return best, costs.missing
