"""This package's own search: over shapes, on all hosts and on fewer, each shape sliced exactly and simulated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import final

from alpa_dejavu._util.ties import least
from alpa_dejavu.planning.search._bench import Bench, is_small
from alpa_dejavu.planning.search._candidate import Candidate, Costs, best_first, host_names
from alpa_dejavu.planning.search._clock import Clock
from alpa_dejavu.planning.search._fewer_hosts import fewer_hosts
from alpa_dejavu.planning.search._learned import errors_of
from alpa_dejavu.planning.search._offloaded_shares import LeanSpace, with_shares
from alpa_dejavu.planning.search._schedules import under_others
from alpa_dejavu.planning.search._shapes import Shape, ShapeSearch
from alpa_dejavu.planning.search.given_stages import on_used_hosts
from alpa_dejavu.planning.task import Chooser, Found, PlanningTask, SpaceRules
from alpa_dejavu.problem.checks import one_of
from alpa_dejavu.problem.run import schedule_form
from alpa_dejavu.simulation.breakdown import AS_FAST

__all__ = ["Searched"]

_CLOSE = 0.05
"""Fewer hosts are searched as widely as all of them where a plan about the best one's shape is within this share of its
step."""
_WIDELY = 8
"""Where every choice of hosts is looked at, up to so many are all searched as widely as the whole cluster."""
_GUIDES = ("zb_h1", "zb_v")
"""The schedules that a search over all schedules looks for shapes under, beside the first one."""
_RIVAL = 1.1
"""Fewer hosts aren't looked at under a schedule whose step takes over so many times the best one's."""
_LEAN = ("v_half", "v_min")
"""Those that keep less memory, under which it looks for shapes if there are none that fit under the others."""
_PLACED = 6
"""So many of the best candidates are costed on the very hosts that they are on."""


@final
@dataclasses.dataclass(frozen=True)
class Searched(Chooser):
    """A chooser that searches for the best plan over numbers of layers, micro-batches, stages and hosts.

    Attributes:
        hosts: "all": plans use all hosts; "any": they may leave hosts out, if that makes them faster; "each": every
            choice of hosts is searched, for plans that are to be cheap.
        begin: numbers of layers and micro-batches that are known to be good, from which the search goes to neighbouring
            ones as long as steps get shorter; None: it looks around widely.
    """

    hosts: str = "any"
    begin: Shape | None = None

    def __post_init__(self) -> None:
        one_of("searched", "hosts", self.hosts, ("all", "any", "each"))

    def choose(self, task: PlanningTask, clock: Clock) -> Found:
        """Returns the candidate plans that are worth comparing, the one with the shortest step first."""
        found = self._under_all_schedules(task, clock)
        rules = task.space
        if not found and isinstance(rules, SpaceRules) and rules.offload != "none":
            found = self._under_all_schedules(dataclasses.replace(task, space=LeanSpace(rules)), clock)
        found = best_first([*(with_shares(task, one) for one in found[:_PLACED]), *found[_PLACED:]])
        placed = [_placed(task, one) for one in found[:_PLACED]]
        clock.lap("placement")
        finest = _finest_first(best_first([*placed, *found[_PLACED:]]))
        if not task.learned or not finest:
            return Found(finest)
        errors, resolver = errors_of(finest, task.learned)
        return Found(finest, errors=errors, resolver=resolver)

    def again(self, task: PlanningTask, found: Sequence[Candidate], clock: Clock) -> Candidate | None:
        """Returns the best plan on fewer hosts (the task's), with as many layers as the first of the plans already
        found; None if nothing fits.

        The search begins at that plan's number of micro-batches, and goes on as long as steps get shorter.
        """
        task = task.under(found[0].run.schedule)
        bench = Bench(task, clock, [one.costs for one in found])
        search = ShapeSearch(task.layers, task.micro_batches, _shape(found[0]))
        there = best_first(bench.searched(search, exactly=False))
        return _placed(task, there[0]) if there else None

    def _under_all_schedules(self, task: PlanningTask, clock: Clock) -> list[Candidate]:
        """The best plans under the schedules that the task allows: searched under those that weigh bubbles and memory
        unlike each other, and of the best shapes simulated under the others.
        """
        found: list[Candidate] = []
        known: list[Costs] = []
        for schedule in (task.schedule, *(name for name in (*_GUIDES, *_LEAN) if name in task.other_schedules)):
            if found and schedule in _LEAN:
                break
            bench = Bench(task.under(schedule), clock, known)
            there = bench.searched(self._search(task) if is_small(task) else self._near(task, schedule, found))
            rival_s = min((one.step_s for one in found), default=math.inf)
            found = best_first([*found, *there, *_on_all_devices(bench, there)])
            if not there or there[0].step_s <= _RIVAL * rival_s:
                found += self._on_fewer_hosts(bench, found)
            known = bench.known
        if task.other_schedules:
            found = best_first([*found, *under_others(best_first(found), (task.schedule, *task.other_schedules))])
            clock.lap("schedules")
            schedule = found[0].run.schedule if found else task.schedule
            if schedule not in (task.schedule, *_GUIDES):
                bench = Bench(task.under(schedule), clock, known)
                found += bench.searched(_near_the_best(bench, found[0]))
        return best_first(found)

    def _on_fewer_hosts(self, bench: Bench, found: Sequence[Candidate]) -> Iterator[Candidate]:
        """Plans that leave hosts out, where a bound doesn't tell that none of them is as good."""
        if self.hosts == "all":
            return
        task, best, each = bench.task, best_first(found)[0] if found else None, self.hosts == "each"
        parts = fewer_hosts(task.cluster, each)
        for part in parts:
            if best is not None and not each and bench.least_work_s / part.num_devices > best.step_s:
                continue
            thorough = best is None or is_small(task)
            smaller = Bench(task.on(part), bench.clock, () if thorough else bench.known)
            there: list[Candidate] = []
            if best is not None and not thorough:
                there = best_first(smaller.searched(_near_the_best(smaller, best), exactly=each))
            close = best is not None and there and there[0].step_s <= best.step_s * (1 + _CLOSE)
            if thorough or close or (each and len(parts) <= _WIDELY):
                there = best_first(smaller.searched(self._search(smaller.task)))
            yield from there
            best = next(iter(best_first([*([] if best is None else [best]), *there])), None)

    def _near(self, task: PlanningTask, schedule: str, found: Sequence[Candidate]) -> ShapeSearch:
        """Returns a search about the best of some plans, with as many layers as its submeshes have chunks at least, and
        as many micro-batches or the next fewer ones, as bubbles count for less; the usual search if there are none.
        """
        if not found:
            return self._search(task)
        best = best_first(found)[0]
        chunks = len(best.slicing.stages) * schedule_form(schedule).chunks
        layers = next((n for n in task.layers if n >= max(chunks, best.model.num_layers)), task.layers[-1])
        place = task.micro_batches.index(best.run.num_micro_batches)
        return ShapeSearch([layers], task.micro_batches[max(place - 1, 0) : place + 1], rival_s=best.step_s)

    def _search(self, task: PlanningTask) -> ShapeSearch:
        return ShapeSearch(task.layers, task.micro_batches, self.begin, thorough=is_small(task))


def _on_all_devices(bench: Bench, found: Sequence[Candidate]) -> list[Candidate]:
    """The best plan on all devices, of the best one's shape, where slicers were free to leave some out and did."""
    if not found or any(one.num_devices == bench.task.cluster.num_devices for one in found):
        return []
    shape = _shape(best_first(found)[0])
    whole = bench.costs(shape.layers, shape.micro_batches).sliced(bench.task.slicer, devices="exactly")
    return [] if whole is None else [whole]


def _shape(best: Candidate) -> Shape:
    return Shape(best.model.num_layers, best.run.num_micro_batches)


def _near_the_best(bench: Bench, best: Candidate) -> ShapeSearch:
    """Returns a search at the best plan's number of layers, over the numbers of micro-batches whose costs are known."""
    layers = best.model.num_layers
    counts = sorted(one.run.num_micro_batches for one in bench.known if one.model.num_layers == layers)
    if not counts:
        return ShapeSearch(bench.task.layers, bench.task.micro_batches, _shape(best))
    return ShapeSearch([layers], counts)


def _finest_first(found: list[Candidate]) -> list[Candidate]:
    """Candidates in their order, but for the one of most layers among those that are as fast as the best one.

    Cuts between more layers are left to choose from once hosts are lost.
    """
    if not found or len(found[0].cluster.hosts) == 1:
        return found
    as_fast = [one for one in found if one.step_s <= found[0].step_s * (1 + AS_FAST)]
    finest = max(as_fast, key=lambda one: one.model.num_layers)
    return [finest, *(one for one in found if one is not finest)]


def _placed(task: PlanningTask, found: Candidate) -> Candidate:
    """The candidate on the very hosts that it is on, where it matters which those are: each stage's in the order of
    its mesh, or in the cluster's, by which an all-to-all may take less.
    """
    used = {host for hosts in found.placed for host in hosts}
    if len(used) == len(found.cluster.hosts) and found.space.hosts is None:
        return found
    names = host_names(found)
    listed = [tuple(found.cluster.hosts[host].name for host in sorted(hosts)) for hosts in found.placed]
    orders = dict.fromkeys((tuple(names), tuple(listed)))
    return least((on_used_hosts(task, found, order) for order in orders), key=lambda one: one.step_s)
