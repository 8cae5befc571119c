"""This package's own search: over shapes, on all hosts and on fewer, each shape sliced exactly and simulated.

About a plan whose stages offload whole kinds of tensors, plans are looked for that offload quarters of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import final

from alpa_dejavu._util.ties import least
from alpa_dejavu.clusters.host_classes import kinds_of, members_of_kinds
from alpa_dejavu.clusters.offload_choices import with_all_shares
from alpa_dejavu.planning.search._candidate import Candidate, Costs, best_first, host_names
from alpa_dejavu.planning.search._polish import under_others
from alpa_dejavu.planning.search._priced_shapes import PricedShapes, is_small, least_work_s
from alpa_dejavu.planning.search._pricing import priced
from alpa_dejavu.planning.search._ranking import goes_by_expected
from alpa_dejavu.planning.search._shapes import Shape, ShapeSearch
from alpa_dejavu.planning.search.given_stages import on_used_hosts, part_of, used_configs
from alpa_dejavu.planning.search.uncertainty import errors_of, expected_steps
from alpa_dejavu.planning.task import Chooser, Clock, Found, PlanningTask, SpaceRules
from alpa_dejavu.problem import Cluster, Submesh
from alpa_dejavu.problem.checks import one_of
from alpa_dejavu.problem.run import schedule_form
from alpa_dejavu.simulation.breakdown import AS_FAST

__all__ = ["Searched", "fewer_hosts", "numbers_of_hosts"]

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
_ON_ALL = 1.5
"""Nor is a plan on all of many unlike hosts looked for that takes over so many times the best one's step."""
_PLACED = 6
"""So many of the best candidates are costed on the very hosts that they are on."""
_ALL = 64
"""Up to so many choices of hosts are all tried."""
_FEW_HOSTS = 8
"""Up to so many alike hosts every smaller number is looked at; of more, one less and about powers of two."""
_MANY_HOSTS = 64
"""Of so many alike hosts one is a small share of a step; of more, one less than a power of two isn't looked at."""


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
        best = self._chosen(task, clock)
        best = _finest_first(best_first([*best, *self._on_kinds_alone(task, best, self._chosen, clock)]))
        return Found(best, errors=errors_of(best, task.learned) if task.learned and best else None)

    def _chosen(self, task: PlanningTask, clock: Clock) -> list[Candidate]:
        best = self._under_all_schedules(task, clock)
        rules = task.space
        if not best and isinstance(rules, SpaceRules) and rules.offload != "none":
            lean = dataclasses.replace(rules, lean=True)
            best = self._under_all_schedules(dataclasses.replace(task, space=lean), clock)
        best = best_first([*(_with_shares(task, candidate) for candidate in best[:_PLACED]), *best[_PLACED:]])
        placed = [_placed(task, candidate) for candidate in best[:_PLACED]]
        clock.lap("placement")
        return best_first([*placed, *best[_PLACED:]])

    def again(self, task: PlanningTask, candidates: Sequence[Candidate], clock: Clock) -> list[Candidate]:
        """Returns the best plan on fewer hosts (the task's), with as many layers as the first of the candidates, and
        where devices are unlike those on each kind of them alone; none if nothing fits.
        """
        task = task.under(candidates[0].run.schedule)
        task = dataclasses.replace(task, layers=(candidates[0].model.num_layers,))

        def chosen(task: PlanningTask, clock: Clock) -> list[Candidate]:
            shapes = PricedShapes(task, clock, [candidate.costs for candidate in candidates])
            best = best_first(shapes.searched(self._search(task), exactly=False))
            return [_placed(task, plan) for plan in best[:1]]

        best = chosen(task, clock)
        return best_first([*best, *self._on_kinds_alone(task, best, chosen, clock)])

    def _on_kinds_alone(
        self,
        task: PlanningTask,
        best: Sequence[Candidate],
        chosen: Callable[[PlanningTask, Clock], list[Candidate]],
        clock: Clock,
    ) -> Iterator[Candidate]:
        """Plans on all hosts of each kind of device alone, where such a plan may be expected to take less than the best
        plan: on all hosts, the search follows the plans that iterate fastest, which wait for several kinds.
        """
        if self.hosts != "any" or not best or not goes_by_expected(task, Found(best)):
            return
        (expected_s,) = expected_steps(best[:1], errors_of(best, task.learned) if task.learned else None)
        priced_whole = dict.fromkeys(plan.costs for plan in best if not plan.costs.partial)
        for device in dict.fromkeys(host.device for host in task.cluster.hosts):
            part = part_of(task.cluster, [n for n, host in enumerate(task.cluster.hosts) if host.device == device])
            work_s = min((least_work_s(costs, device) for costs in priced_whole), default=0.0)
            if work_s / part.num_devices < expected_s:
                yield from chosen(task.on(part), clock)

    def _under_all_schedules(self, task: PlanningTask, clock: Clock) -> list[Candidate]:
        """The best plans under the schedules that the task allows: searched under those that weigh bubbles and memory
        unlike each other, and of the best shapes simulated under the others.
        """
        best: list[Candidate] = []
        costs: list[Costs] = []
        for schedule in (task.schedule, *(name for name in (*_GUIDES, *_LEAN) if name in task.other_schedules)):
            if best and schedule in _LEAN:
                break
            shapes = PricedShapes(task.under(schedule), clock, costs)
            own = shapes.searched(self._search(task) if is_small(task) else self._near(task, schedule, best))
            rival_s = min((candidate.step_s for candidate in best), default=math.inf)
            best = best_first([*best, *own, *_on_all_devices(shapes, own)])
            if not own or own[0].step_s <= _RIVAL * rival_s:
                best += self._on_fewer_hosts(shapes, best)
            costs = shapes.priced
        if task.other_schedules:
            best = best_first([*best, *under_others(best_first(best), (task.schedule, *task.other_schedules))])
            clock.lap("schedules")
            schedule = best[0].run.schedule if best else task.schedule
            if schedule not in (task.schedule, *_GUIDES):
                shapes = PricedShapes(task.under(schedule), clock, costs)
                best += shapes.searched(_near_the_best(shapes, best[0]))
        return best_first(best)

    def _on_fewer_hosts(self, shapes: PricedShapes, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """Plans that leave hosts out, where a bound doesn't tell that none of them is as good."""
        if self.hosts == "all":
            return
        task, every = shapes.task, self.hosts == "each"
        best = best_first(candidates)[0] if candidates else None
        parts = fewer_hosts(task.cluster, every)
        for part in parts:
            if best is not None and not every and shapes.least_work_s / part.num_devices > best.step_s:
                continue
            thorough = best is None or is_small(task)
            if not thorough and not every and _offers_nothing_new(task, part):
                continue
            smaller = PricedShapes(task.on(part), shapes.clock, () if thorough else shapes.priced)
            plans: list[Candidate] = []
            if best is not None and not thorough:
                near = _near_the_best(smaller, best, none_slower=not every)
                plans = best_first(smaller.searched(near, exactly=every))
            close = best is not None and plans and plans[0].step_s <= best.step_s * (1 + _CLOSE)
            if thorough or close or (every and len(parts) <= _WIDELY):
                costs = () if thorough or every else shapes.priced  # others' plans were far from the best one
                plans = best_first(smaller.searched(self._search(smaller.task, costs)))
            yield from plans
            best = next(iter(best_first([best, *plans])), None)

    def _near(self, task: PlanningTask, schedule: str, candidates: Sequence[Candidate]) -> ShapeSearch:
        """Returns a search about the best of some plans, with as many layers as its submeshes have chunks at least, and
        as many micro-batches or the next fewer ones, as bubbles count for less; the usual search if there are none.
        """
        if not candidates:
            return self._search(task)
        best = best_first(candidates)[0]
        chunks = len(best.slicing.stages) * schedule_form(schedule).chunks
        layers = next((n for n in task.layers if n >= max(chunks, best.model.num_layers)), task.layers[-1])
        place = task.micro_batches.index(best.run.num_micro_batches)
        return ShapeSearch([layers], task.micro_batches[max(place - 1, 0) : place + 1], rival_s=best.step_s)

    def _search(self, task: PlanningTask, costs: Sequence[Costs] = ()) -> ShapeSearch:
        counts = sorted({near.run.num_micro_batches for near in costs}) or task.micro_batches
        devices = task.cluster.num_devices
        halved = not task.unlike and devices & (devices - 1) == 0
        return ShapeSearch(task.layers, counts, self.begin, thorough=is_small(task), halved=halved)


def _on_all_devices(shapes: PricedShapes, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The best plan on all devices, of the best one's shape, where slicers were free to leave some out and did."""
    if not candidates or any(plan.num_devices == shapes.task.cluster.num_devices for plan in candidates):
        return []
    shape = _shape(best_first(candidates)[0])
    costs = shapes.costs(shape.layers, shape.micro_batches)
    whole = costs.sliced(shapes.within(_ON_ALL), devices="exactly")
    return [] if whole is None else [whole]


def _shape(best: Candidate) -> Shape:
    return Shape(best.model.num_layers, best.run.num_micro_batches)


def _near_the_best(shapes: PricedShapes, best: Candidate, none_slower: bool = False) -> ShapeSearch:
    """Returns a search at the best plan's number of layers, over the numbers of micro-batches whose costs are known;
    from its own on as long as steps get shorter, where no plan that is slower is of any use.
    """
    layers = best.model.num_layers
    counts = sorted(costs.run.num_micro_batches for costs in shapes.priced if costs.model.num_layers == layers)
    if not counts:
        return ShapeSearch(shapes.task.layers, shapes.task.micro_batches, _shape(best))
    if none_slower:
        return ShapeSearch([layers], counts, _shape(best), rival_s=best.step_s)
    return ShapeSearch([layers], counts)


def _finest_first(candidates: list[Candidate]) -> list[Candidate]:
    """Candidates in their order, but for the one of most layers among those that are as fast as the best one.

    Cuts between more layers are left to choose from once hosts are lost.
    """
    if not candidates or len(candidates[0].cluster.hosts) == 1:
        return candidates
    as_fast = [plan for plan in candidates if plan.step_s <= candidates[0].step_s * (1 + AS_FAST)]
    finest = max(as_fast, key=lambda plan: plan.model.num_layers)
    return [finest, *(plan for plan in candidates if plan is not finest)]


def _placed(task: PlanningTask, candidate: Candidate) -> Candidate:
    """The candidate on the very hosts that it is on, where it matters which those are: each stage's in the order of
    its mesh, or in the cluster's, by which an all-to-all may take less.
    """
    hosts = candidate.cluster.hosts
    if len({host for on in candidate.placed for host in on}) == len(hosts) and candidate.space.hosts is None:
        return candidate
    listed = tuple(tuple(hosts[host].name for host in sorted(on)) for on in candidate.placed)
    orders = dict.fromkeys((tuple(host_names(candidate)), listed))
    return least((on_used_hosts(task, candidate, order) for order in orders), key=lambda plan: plan.step_s)


def _with_shares(task: PlanningTask, candidate: Candidate) -> Candidate:
    """Returns the best plan about a candidate whose stages may offload any quarters of what they keep; the candidate
    itself where none of its stages offloads, or where no other plan is faster.

    Stages have the submeshes and configs of the candidate, but for the shares; its layers are cut anew.
    """
    space = used_configs(candidate)
    places = {config.offload.place for row in space.configs for config in row if config and config.offload.any}
    if not places:
        return candidate
    micro_batch = task.micro_batch(candidate.run.num_micro_batches)
    offered = task.space.restricted(with_all_shares(space, sorted(places)), candidate.cluster, micro_batch)
    exact = candidate.costs.exact
    costs = priced(task, candidate.model, candidate.cluster, offered, candidate.run, exact, partial=True)
    other = costs.sliced(task.slicer, len(candidate.slicing.stages))
    best = candidate if other is None or other.step_s >= candidate.step_s else other
    # Bounds by these few configs alone say nothing of other plans.
    return dataclasses.replace(best, slicing=dataclasses.replace(best.slicing, lower_bound_s=0.0))


def _offers_nothing_new(task: PlanningTask, part: Cluster) -> bool:
    """Returns whether stages on a part of unlike hosts may have no submeshes on hosts of one kind but those that they
    may have on all hosts too, at the same costs: a plan on all hosts may leave some out by itself.
    """
    rules, cluster = task.space, task.cluster
    if not task.unlike or cluster.reduction_servers or not isinstance(rules, SpaceRules):
        return False
    if rules.restriction is not None or math.isfinite(rules.imbalance):
        return False
    kinds, sites = kinds_of(cluster), list[set[tuple[Submesh, tuple[int, ...]]]]()
    for hosts in (cluster, part):  # a micro-batch of all samples can be divided in every way
        space, numbers = rules.space(hosts, task.micro_batch(1)), cluster.host_numbers
        named = space.hosts or [range(submesh.num_hosts) for submesh in space.submeshes]
        on_kinds = (tuple(sorted(kinds[numbers[hosts.hosts[host].name]] for host in on)) for on in named)
        sites.append(set(zip(space.submeshes, on_kinds, strict=True)))
    return all(len(set(on)) > 1 for _, on in sites[1] - sites[0])


def fewer_hosts(cluster: Cluster, every: bool = False) -> list[Cluster]:
    """Returns smaller clusters that leave out hosts of a cluster, largest first; none where devices share one CPU.

    If all hosts are alike, there is a cluster of each smaller number of hosts; where they are more than eight, only of
    one host less, and of numbers that are a power of two or three times a power of two. One host less than such a
    number isn't looked at where that is over 64, since its stages would divide hosts that no others share. If hosts are
    unlike, one host of a kind is left out at a time, or all hosts of some kinds. With `every` there are more clusters,
    for plans that are to be cheap: every choice of how many hosts of each kind, if there are few such choices.

    >>> from alpa_dejavu.clusters import named_cluster
    >>> [len(part.hosts) for part in fewer_hosts(named_cluster("p3.16xlarge", 16))]
    [15, 12, 8, 6, 4, 3, 2, 1]
    """
    if cluster.shared:
        return []
    members = members_of_kinds(cluster)
    whole = tuple(map(len, members))
    if every:
        choices = numbers_of_hosts(cluster)
    elif len(members) == 1:
        near_powers = {times << n for times in (1, 3) for n in range(whole[0].bit_length())}
        even = whole[0] > _MANY_HOSTS and whole[0] in near_powers
        some = near_powers | (set(range(whole[0])) if whole[0] <= _FEW_HOSTS else set() if even else {whole[0] - 1})
        choices = [(n,) for n in range(1, whole[0]) if n in some]
    else:
        choices = [tuple(n - (kind == k) for k, n in enumerate(whole)) for kind in range(len(whole))]
        few = len(whole) <= 3  # each choice of few kinds that are whole, each one alone of many
        masks = range(1, 2 ** len(whole) - 1) if few else [1 << kind for kind in range(len(whole))]
        choices += [tuple(n * (mask >> kind & 1) for kind, n in enumerate(whole)) for mask in masks]
    parts = [
        part_of(cluster, sorted(host for hosts, n in zip(members, counts, strict=True) for host in hosts[:n]))
        for counts in dict.fromkeys(choices)
        if any(counts) and counts != whole
    ]
    return sorted(parts, key=lambda part: -part.num_devices)


def numbers_of_hosts(cluster: Cluster) -> list[tuple[int, ...]]:
    """Returns how many hosts of each kind to plan for, as tuples with a number for each kind; never all hosts.

    Every choice is returned if there are few. Else one host after the other is left out: in one row of choices from
    the kinds that cost most for what they compute, in another from the slowest kinds.

    >>> from alpa_dejavu.clusters import named_cluster
    >>> numbers_of_hosts(named_cluster("p3.16xlarge", 4))
    [(1,), (2,), (3,)]
    """
    members = members_of_kinds(cluster)
    whole = tuple(map(len, members))
    if math.prod(count + 1 for count in whole) <= _ALL:
        return [counts for counts in itertools.product(*(range(n + 1) for n in whole)) if any(counts)][:-1]
    first = [cluster.hosts[hosts[0]] for hosts in members]
    rates = [host.num_devices * host.device.rate("float32") for host in first]
    dearest = sorted(range(len(first)), key=lambda kind: -(first[kind].price_per_hour or 0.0) / rates[kind])
    slowest = sorted(range(len(first)), key=lambda kind: rates[kind])
    return list(dict.fromkeys([*_left(whole, dearest), *_left(whole, slowest)]))


def _left(whole: Sequence[int], order: Sequence[int]) -> Iterator[tuple[int, ...]]:
    left = list(whole)
    for kind in order:
        for _ in range(whole[kind]):
            left[kind] -= 1
            if any(left):
                yield tuple(left)
