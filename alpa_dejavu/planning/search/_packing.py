"""Slicings whose submeshes surely pack into the hosts of a cluster, or fill one host after the other.

A slicing problem alone doesn't know which stages share a host: its stages are placed once it is solved. `packed` asks
again until they can be placed. In `host_by_host` each part of a host stands once for each device of the host at which
it may begin, and a stage follows one that ends there; so it is known which cuts between stages are within a host.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu._util.range_table import RangeTable, common_kinds, numbered
from alpa_dejavu._util.ties import least
from alpa_dejavu.clusters.host_classes import by_sites, kinds_of, members_of_kinds, slow_inside, takes_part_of_several
from alpa_dejavu.clusters.placement import packings, place_stages
from alpa_dejavu.costs.interstage import InterstageTable, InterstageTransfer
from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.problem import Cluster, NoPlanError, SearchSpace, Sites, Slicing, SlicingProblem, StageChoice
from alpa_dejavu.slicing import Slicer

__all__ = ["HostByHost", "host_by_host", "packed"]

_MOST_TRIED = 16
"""So many slicings that don't pack are given up, in favour of submeshes that fit in any mixture."""
_MOST_BEGINNINGS = 32
"""Smaller parts of a host, which may begin at more of its devices, aren't placed one after the other: on a host of 72
these are single devices and pairs, and with them there would be three times as many submeshes.
"""
_NEVER_S = 1e9
"""The cost of a cut where the stage behind it can't begin at the device where the one before it ends."""


def packed(problem: SlicingProblem, space: SearchSpace, cluster: Cluster, slicer: Slicer) -> Slicing:
    """Returns the stages into which a slicer cuts a model's layers, of those whose submeshes pack into the hosts.

    Where the slicer's stages don't pack, it is asked again with one stage less of a size that stands in the way, for
    each such size. If that finds none after some tries, the stages are the best whose submeshes fit in any mixture.
    """
    first = slicer.slice(problem)
    if not by_sites(cluster) and not any(takes_part_of_several(submesh, cluster) for submesh in space.submeshes):
        return first
    tried, waiting = 0, [(first.cost_s, 0, first, problem)] if first.found else []
    while waiting and not _packs(waiting[0][2].stages, space, cluster):
        if tried >= _MOST_TRIED or problem.sites is None:
            at_least = min(slicing.lower_bound_s for _, _, slicing, _ in waiting)
            return _in_any_mixture(problem, space, cluster, slicer, at_least)
        _, _, slicing, of_problem = heapq.heappop(waiting)
        for fewer in _with_fewer(of_problem, slicing.stages, space, cluster):
            tried += 1
            slicing = slicer.slice(fewer)
            if slicing.found:
                heapq.heappush(waiting, (slicing.cost_s, tried, slicing, fewer))
    if not waiting:
        return Slicing.of(problem, ())
    return dataclasses.replace(waiting[0][2], lower_bound_s=min(slicing.lower_bound_s for _, _, slicing, _ in waiting))


def _with_fewer(
    problem: SlicingProblem, stages: Sequence[StageChoice], space: SearchSpace, cluster: Cluster
) -> Iterator[SlicingProblem]:
    """Yields problems in which stages like some that don't pack are fewer, of one size each; whatever packs is allowed
    by one of them.
    """
    kinds, hosts = kinds_of(cluster), space.hosts or [()] * len(space.submeshes)
    sites = [(submesh, *sorted(kinds[n] for n in on)) for submesh, on in zip(space.submeshes, hosts, strict=True)]
    conflict = list(stages)
    for stage in stages:
        others = [other for other in conflict if other != stage]
        conflict = conflict if _packs(others, space, cluster) else others
    assert problem.sites is not None, "asked where there are sites"
    for site, count in Counter(sites[stage.submesh] for stage in conflict).items():
        takes = np.array([[int(other == site)] for other in sites])
        yield dataclasses.replace(problem, sites=problem.sites.with_capacity(takes, np.array([count - 1])))


def _in_any_mixture(
    problem: SlicingProblem, space: SearchSpace, cluster: Cluster, slicer: Slicer, at_least: float
) -> Slicing:
    """Returns the best stages on submeshes that fit in any mixture; no others cost less than `at_least`."""
    masked = [problem.costs_s + np.where(which, 0.0, np.inf)[:, None] for which in packings(space, cluster)]
    slicings = [slicer.slice(dataclasses.replace(problem, costs_s=costs)) for costs in masked]
    best = least(slicings, key=lambda slicing: slicing.cost_s)
    if not _packs(best.stages, space, cluster):
        return Slicing.of(problem, ())
    return dataclasses.replace(best, lower_bound_s=min(at_least, best.cost_s))


def _packs(stages: Sequence[StageChoice], space: SearchSpace, cluster: Cluster) -> bool:
    try:
        place_stages(stages, space, cluster)
    except NoPlanError:
        return False
    return True


@final
@dataclasses.dataclass(frozen=True, eq=False)
class HostByHost:
    """A problem of cutting layers into stages that fill one host after the other, for a slicer to solve.

    Attributes:
        cluster: the cluster whose hosts are filled.
        space: the search space, with its own submeshes.
        problem: the problem as a slicer takes it, with S submeshes that each begin at a certain device.
        submesh: for each of the problem's submeshes which one of the search space it is, shape (S,).
        begin: for each of them the device of its host at which it begins, shape (S,).
    """

    cluster: Cluster
    space: SearchSpace
    problem: SlicingProblem
    submesh: NDArray[np.int64]
    begin: NDArray[np.int64]

    def answer(self, slicing: Slicing) -> tuple[Slicing, tuple[tuple[int, ...], ...]] | None:
        """Returns a slicer's solution with its stages on submeshes of the search space, and the indices of each stage's
        hosts; None if the solution leaves gaps between stages on a host, takes more hosts than there are, or has no
        stages.
        """
        if not slicing.found or slicing.cost_s >= _NEVER_S:
            return None
        stages = tuple(dataclasses.replace(stage, submesh=int(self.submesh[stage.submesh])) for stage in slicing.stages)
        hosts = self._hosts(stages, [int(self.begin[stage.submesh]) for stage in slicing.stages])
        return None if hosts is None else (dataclasses.replace(slicing, stages=stages), hosts)

    def _hosts(self, stages: Sequence[StageChoice], begins: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
        """Returns each stage's hosts in order; a stage that begins within a host is where the one before is.

        None: a stage on several unlike hosts leaves devices of one free, which the problem counts as if another stage
        could have them, and so the hosts don't suffice.
        """
        of_space, kinds = self.space.hosts, kinds_of(self.cluster)
        free = [list(range(len(kinds)))] if of_space is None else members_of_kinds(self.cluster)
        hosts = list[tuple[int, ...]]()
        for stage, begin in zip(stages, begins, strict=True):
            if begin:
                hosts.append(hosts[-1])
                continue
            count = self.space.submeshes[stage.submesh].num_hosts
            wanted = [0] * count if of_space is None else [kinds[host] for host in of_space[stage.submesh]]
            if any(len(free[kind]) < wanted.count(kind) for kind in wanted):
                return None
            hosts.append(tuple(free[kind].pop(0) for kind in wanted))
        return tuple(hosts)


def host_by_host(
    plain: SlicingProblem, table: CostTable, cluster: Cluster, space: SearchSpace, senders_wait: bool
) -> HostByHost | None:
    """Returns the problem of cutting layers into stages that fill one host after the other, by the costs of a table;
    None where stages aren't to fill hosts: devices share a CPU, links within hosts are slower than others, or every
    submesh takes parts of several hosts.

    Args:
        plain: the same problem without hosts to fill, in which sending costs the sender nothing.
        table: the costs of all stages.
        cluster: several hosts, at least one of them with several devices.
        space: the submeshes and configs of the table.
        senders_wait: whether a stage can't compute while it sends, so that its sends count as its own seconds, too.
    """
    per_host = [host.num_devices for host in cluster.hosts]
    if table.interstage is None or table.transfer is None or plain.sites is None:
        return None
    if cluster.shared or slow_inside(cluster):
        return None
    if len(per_host) < 2 or max(per_host) < 2 or (space.hosts is None and len(set(per_host)) > 1):
        return None
    beginnings = _beginnings(cluster, space)
    if not beginnings:
        return None
    submesh, begin = map(np.array, zip(*beginnings, strict=True))
    links, cuts_s, onward = _cuts(table.transfer, table.interstage, cluster, space, submesh, begin)
    sent_s = np.concatenate([cuts_s[1:, onward], np.zeros((1, len(onward)))]) * senders_wait
    # The first layer is told apart, and how long the cut behind the last one takes.
    ends = 2 * numbered(sent_s)[None, :] + (np.arange(len(sent_s)) == 0)[:, None]
    kinds = common_kinds((plain.costs_s, plain.followers, plain.once_s), ends)
    costs = kinds.table(plain.costs_s).rows[:, submesh] + sent_s[kinds.lasts, :, None]
    costs[(kinds.firsts == 0)[:, None] & (begin > 0)] = np.inf
    problem = dataclasses.replace(
        plain,
        costs_s=RangeTable(costs, kinds.of_range),
        submesh_sizes=plain.submesh_sizes[submesh],
        max_n_succ_stages=kinds.table(plain.followers)[:, :, submesh],
        per_step_s=kinds.table(plain.once_s)[:, :, submesh],
        sites=Sites(plain.sites.uses[submesh], plain.sites.available, links, cuts_s),
        families=None if plain.families is None else plain.families[:, submesh],
    )
    return HostByHost(cluster, space, problem, submesh, begin)


def _beginnings(cluster: Cluster, space: SearchSpace) -> list[tuple[int, int]]:
    """Returns each submesh with each device at which it may begin: a multiple of what divides both it and its host."""
    beginnings = []
    for n, submesh in enumerate(space.submeshes):
        devices, whole = submesh.devices_per_host, _devices(cluster, space, n)
        if submesh.num_hosts == 1:
            places = range(0, whole - devices + 1, math.gcd(devices, whole))
            beginnings += [(n, at) for at in places if len(places) <= _MOST_BEGINNINGS]
        elif devices == whole:
            beginnings.append((n, 0))
    return beginnings


def _devices(cluster: Cluster, space: SearchSpace, submesh: int) -> int:
    return min(cluster.hosts[host].num_devices for host in ((0,) if space.hosts is None else space.hosts[submesh]))


def _cuts(
    transfer: InterstageTransfer,
    apart: InterstageTable,
    cluster: Cluster,
    space: SearchSpace,
    submesh: NDArray[np.int64],
    begin: NDArray[np.int64],
) -> tuple[NDArray[np.int64], FloatArray, NDArray[np.int64]]:
    """Returns which of D kinds of links (within hosts, between hosts, none where a stage can't follow another) leads
    from each of S submeshes to the next, shape (S, S); the seconds of a micro-batch across each cut, forward and
    backward, shape (L, D); and the kind over which each submesh sends to one like it that begins where it ends, (S,).
    """
    part = np.array([one_host.num_hosts == 1 for one_host in space.submeshes])[submesh]
    devices = np.array([on_host.devices_per_host for on_host in space.submeshes])[submesh]
    whole = np.array([_devices(cluster, space, n) for n in range(len(space.submeshes))])[submesh]
    host = np.array([on[0] for on in space.hosts or [(0,)] * len(space.submeshes)])[submesh]
    end = np.where(part, (begin + devices) % whole, 0)  # the device behind the last one; 0 where the host is full
    kind = np.array(kinds_of(cluster))[host]
    goes_on = part & (end > 0)
    inside = goes_on[:, None] & part & (end[:, None] == begin) & (kind[:, None] == kind)
    between = (end[:, None] == 0) & (begin == 0)
    shares, hosts = sorted(set(devices.tolist())), sorted(set(host.tolist()))
    within = [transfer.seconds((place, place), share).sum(axis=0) for place in hosts for share in shares]
    never = len(apart.ends) + len(within)
    place = len(apart.ends) + len(shares) * np.searchsorted(hosts, host)
    share = np.searchsorted(shares, devices)
    near, far = place[:, None] + np.minimum.outer(share, share), apart.links[np.ix_(submesh, submesh)]
    links = np.where(inside, near, np.where(between, far, never))
    onward = np.where(goes_on, place + share, np.diagonal(far))
    nowhere = np.full((len(apart.forward_s), 1), _NEVER_S)
    return links, np.concatenate([apart.forward_s + apart.backward_s, np.array(within).T, nowhere], axis=1), onward
