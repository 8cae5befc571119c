"""Has stages fill one host after the other, so that it is known which cuts between them are within a host.

A slicing problem alone doesn't know which stages share a host: its stages are placed once it is solved. Here each part
of a host stands once for each device of the host at which it may begin, and a stage follows one that ends there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.clusters.host_classes import kinds_of, members_of_kinds, slow_inside
from alpa_dejavu.costs.interstage import InterstageTable, InterstageTransfer
from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.problem import Cluster, SearchSpace, Sites, Slicing, SlicingProblem, StageChoice

__all__ = ["HostByHost", "host_by_host"]

_NEVER_S = 1e9
"""The cost of a cut where the stage behind it can't begin at the device where the one before it ends."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class HostByHost:
    """A problem of cutting layers into stages that fill one host after the other, for a slicer to solve.

    In the problem each submesh of the search space stands once for each device of a host at which it may begin.

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
        stages = tuple(dataclasses.replace(one, submesh=int(self.submesh[one.submesh])) for one in slicing.stages)
        hosts = self._hosts(stages, [int(self.begin[one.submesh]) for one in slicing.stages])
        return None if hosts is None else (dataclasses.replace(slicing, stages=stages), hosts)

    def _hosts(self, stages: Sequence[StageChoice], begins: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
        """Returns each stage's hosts, taken in order; a stage that begins within a host is where the one before is.

        None: a stage on several unlike hosts leaves devices of one free, which the problem counts as if another stage
        could have them, and so the hosts don't suffice.
        """
        of_space, kinds = self.space.hosts, kinds_of(self.cluster)
        free = [list(range(len(kinds)))] if of_space is None else members_of_kinds(self.cluster)
        found = list[tuple[int, ...]]()
        for stage, begin in zip(stages, begins, strict=True):
            if begin:
                found.append(found[-1])
                continue
            count = self.space.submeshes[stage.submesh].num_hosts
            wanted = [0] * count if of_space is None else [kinds[host] for host in of_space[stage.submesh]]
            if any(len(free[kind]) < wanted.count(kind) for kind in wanted):
                return None
            found.append(tuple(free[kind].pop(0) for kind in wanted))
        return tuple(found)


def host_by_host(
    plain: SlicingProblem, table: CostTable, cluster: Cluster, space: SearchSpace, senders_wait: bool
) -> HostByHost | None:
    """Returns the problem of cutting layers into stages that fill one host after the other, by the costs of a table.

    Args:
        plain: the same problem without hosts to fill, in which sending costs the sender nothing.
        table: the costs of all stages.
        cluster: several hosts, at least one of them with several devices.
        space: the submeshes and configs of the table.
        senders_wait: whether a stage can't compute while it sends, so that its sends count as its own seconds, too.

    Returns:
        None where stages aren't to fill hosts: devices share a CPU, links within hosts are slower than others, or every
        submesh takes parts of several hosts.
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
    sites = _sites(cluster, space, submesh, begin)
    links, crossing_s, onward = _crossing(table.transfer, table.interstage, sites)
    costs = plain.costs_s[:, :, submesh]
    if senders_wait:
        costs = costs + np.concatenate([crossing_s[1:, onward], np.zeros((1, len(onward)))])[None, :, :, None]
    costs[0][:, begin > 0] = np.inf
    problem = dataclasses.replace(
        plain,
        costs_s=costs,
        submesh_sizes=plain.submesh_sizes[submesh],
        max_n_succ_stages=plain.room[:, :, submesh],
        per_step_s=plain.once_s[:, :, submesh],
        sites=Sites(plain.sites.uses[submesh], plain.sites.available, links, crossing_s),
        families=None if plain.families is None else plain.families[:, submesh],
    )
    return HostByHost(cluster, space, problem, submesh, begin)


def _beginnings(cluster: Cluster, space: SearchSpace) -> list[tuple[int, int]]:
    """Returns each submesh with each device at which it may begin: a multiple of what divides both it and its host."""
    found = []
    for n, submesh in enumerate(space.submeshes):
        devices, whole = submesh.devices_per_host, _devices(cluster, space, n)
        if submesh.num_hosts == 1:
            found += [(n, at) for at in range(0, whole - devices + 1, math.gcd(devices, whole))]
        elif devices == whole:
            found.append((n, 0))
    return found


def _devices(cluster: Cluster, space: SearchSpace, submesh: int) -> int:
    """Returns how many devices each host of a submesh has at least."""
    return min(cluster.hosts[host].num_devices for host in ((0,) if space.hosts is None else space.hosts[submesh]))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Sites:
    """The places of S submeshes; every array has shape (S,).

    Attributes:
        submesh: which one of the space each is.
        part: whether it is in one host.
        devices: how many it takes of each of its hosts.
        begin: the first of them on its host.
        end: the device behind the last one; 0 where the host is full.
        first: its first host.
        kind: the kind of that host.
    """

    submesh: NDArray[np.int64]
    part: NDArray[np.bool_]
    devices: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    first: NDArray[np.int64]
    kind: NDArray[np.int64]


def _sites(cluster: Cluster, space: SearchSpace, submesh: NDArray[np.int64], begin: NDArray[np.int64]) -> _Sites:
    one_host = np.array([one.num_hosts == 1 for one in space.submeshes])[submesh]
    devices = np.array([one.devices_per_host for one in space.submeshes])[submesh]
    whole = np.array([_devices(cluster, space, n) for n in range(len(space.submeshes))])[submesh]
    hosts = space.hosts or [(0,)] * len(space.submeshes)
    first = np.array([on[0] for on in hosts])[submesh]
    end = np.where(one_host, (begin + devices) % whole, 0)
    return _Sites(submesh, one_host, devices, begin, end, first, np.array(kinds_of(cluster))[first])


def _crossing(
    transfer: InterstageTransfer, apart: InterstageTable, sites: _Sites
) -> tuple[NDArray[np.int64], FloatArray, NDArray[np.int64]]:
    """Prices the cuts within hosts, between hosts, and where a stage can't follow another.

    Returns:
        Which of D kinds of links leads from each of S submeshes to the next, shape (S, S); the seconds of a micro-batch
        across each cut, forward and backward, shape (L, D); and the kind over which each submesh sends to one like it
        that begins where it ends, shape (S,).
    """
    goes_on = sites.part & (sites.end > 0)
    inside = goes_on[:, None] & sites.part & (sites.end[:, None] == sites.begin)
    inside &= sites.kind[:, None] == sites.kind
    between = (sites.end[:, None] == 0) & (sites.begin == 0)
    shares = sorted(set(sites.devices.tolist()))
    places = sorted(set(sites.first.tolist()))
    within = [transfer.seconds((place, place), share).sum(axis=0) for place in places for share in shares]
    never = len(apart.ends) + len(within)
    place = len(apart.ends) + len(shares) * np.searchsorted(places, sites.first)
    share = np.searchsorted(shares, sites.devices)
    near, far = place[:, None] + np.minimum.outer(share, share), apart.links[np.ix_(sites.submesh, sites.submesh)]
    links = np.where(inside, near, np.where(between, far, never))
    onward = np.where(goes_on, place + share, np.diagonal(far))
    nowhere = np.full((len(apart.forward_s), 1), _NEVER_S)
    return links, np.concatenate([apart.forward_s + apart.backward_s, np.array(within).T, nowhere], axis=1), onward
