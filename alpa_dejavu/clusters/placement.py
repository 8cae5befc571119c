"""The placement of stages on hosts.

Where hosts are alike, by Alpa's own rule, since Alpa places the stages of a finished plan by it. Where they aren't, the
search has said of which kinds a stage's hosts are; which of that kind is then free to choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.clusters.host_classes import kinds_of, members_of_kinds, slow_inside, takes_part_of_several
from alpa_dejavu.problem import Cluster, NoPlanError, SearchSpace, StageChoice, StagePlan, Submesh

_MOST_TRIED = 20_000
"""Where submeshes don't fit one after the other, at most so many beginnings of placements are tried."""


def place(
    submeshes: Sequence[Submesh], cluster: Cluster, kinds: Sequence[Sequence[int]] | None = None
) -> list[tuple[int, ...]]:
    """Places stages on a cluster's hosts; returns for each stage's submesh the indices of its hosts. NoPlanError if the
    submeshes don't fill the hosts.

    The largest submesh, of equal ones the last, takes the first hosts. If that leaves no room for a later one, other
    hosts are tried for those on one host. Where links within hosts are slower than those between, neighbouring stages
    are on different hosts if they can be.

    If `kinds` has for each stage the kind (`host_kinds`) of each of its hosts, a stage's hosts of one kind are as near
    to each other in the cluster's order as possible, and a stage on a part of a host takes one that other stages have
    begun to fill; None: hosts of any kind.

    References:
        Alpa's `get_sliced_virtual_submeshes`.
    """
    free = [host.num_devices for host in cluster.hosts]
    placed: list[tuple[int, ...]] = [()] * len(submeshes)
    apart = slow_inside(cluster)
    for n in _in_turn(submeshes):
        wanted = submeshes[n]
        fitting = [host for host, left in enumerate(free) if left >= wanted.devices_per_host]
        if apart:
            near = {host for stage in placed[max(n - 1, 0) : n + 2] for host in stage}
            fitting.sort(key=lambda host: (host in near, -free[host], host))
        chosen = (
            sorted(fitting[: wanted.num_hosts]) if kinds is None else _of_kinds(fitting, kinds[n], free, cluster, apart)
        )
        if len(chosen) < wanted.num_hosts:
            return _otherwise(submeshes, cluster, kinds)
        placed[n] = tuple(chosen)
        for host in placed[n]:
            free[host] -= wanted.devices_per_host
    return placed


def _otherwise(
    submeshes: Sequence[Submesh], cluster: Cluster, kinds: Sequence[Sequence[int]] | None
) -> list[tuple[int, ...]]:
    """Places submeshes on hosts with as little room left as possible, and on others where a later one has none then."""
    order, of = _in_turn(submeshes), (0,) * len(cluster.hosts) if kinds is None else kinds_of(cluster)
    placed: list[tuple[int, ...]] = [()] * len(submeshes)
    in_vain = set[tuple[int, tuple[tuple[int, int], ...]]]()

    def rest(turn: int, free: tuple[int, ...]) -> bool:
        state = turn, tuple(sorted(zip(of, free, strict=True)))
        if turn == len(order) or state in in_vain or len(in_vain) > _MOST_TRIED:
            return turn == len(order)
        n = order[turn]
        devices, wanted = submeshes[n].devices_per_host, [0] * submeshes[n].num_hosts if kinds is None else kinds[n]
        fitting = sorted((left, host) for host, left in enumerate(free) if left >= devices)
        of_kinds = {kind: [host for _, host in fitting if of[host] == kind] for kind in wanted}
        alike = {free[host]: (host,) for host in reversed(of_kinds[wanted[0]])}  # one of those with equal room
        several = tuple(host for kind, hosts in of_kinds.items() for host in hosts[: list(wanted).count(kind)])
        for chosen in [alike[left] for left in sorted(alike)] if len(wanted) == 1 else [several]:
            left_over = tuple(left - devices * (host in chosen) for host, left in enumerate(free))
            if len(chosen) == len(wanted) and rest(turn + 1, left_over):
                placed[n] = tuple(sorted(chosen))
                return True
        in_vain.add(state)
        return False

    if rest(0, tuple(host.num_devices for host in cluster.hosts)):
        return placed
    shapes = [(s.num_hosts, s.devices_per_host) for s in submeshes]
    raise NoPlanError(
        f"the submeshes {shapes} don't fit the hosts of cluster {cluster.name} "
        f"({[host.num_devices for host in cluster.hosts]} devices); choose submeshes that fill its hosts"
    )


def alpas_hosts(submeshes: Sequence[Submesh], num_hosts: int, devices_per_host: int) -> list[tuple[int, ...]] | None:
    """Returns for each stage's submesh the indices of the hosts that Alpa itself gives it, on equal hosts; None where
    Alpa refuses the submeshes.

    Alpa fills one host after the other, and refuses a submesh that the host which it is at has too few devices left
    for, or that takes parts of several hosts. `place` goes back to hosts that have room left, and else does the same.

    References:
        Alpa's `get_sliced_virtual_submeshes`.
    """
    placed: list[tuple[int, ...]] = [()] * len(submeshes)
    host = used = 0
    for n in _in_turn(submeshes):
        wanted = submeshes[n]
        part = wanted.devices_per_host < devices_per_host
        if used + wanted.devices_per_host > devices_per_host or (part and wanted.num_hosts > 1):
            return None
        placed[n] = tuple(range(host, host + wanted.num_hosts))
        used += wanted.devices_per_host
        if used == devices_per_host:
            host, used = host + wanted.num_hosts, 0
    return placed if (host, used) == (num_hosts, 0) else None


def _in_turn(submeshes: Sequence[Submesh]) -> list[int]:
    """The stages in the order in which they take hosts."""
    return sorted(range(len(submeshes)), key=lambda n: (submeshes[n].num_devices, n), reverse=True)


def _of_kinds(
    fitting: Sequence[int], wanted: Sequence[int], free: Sequence[int], cluster: Cluster, first: bool
) -> list[int]:
    """As many hosts of each kind as are wanted, or there are, with room: the first ones, or those near each other."""
    kinds, chosen = kinds_of(cluster), list[int]()
    for kind in dict.fromkeys(wanted):
        count = list(wanted).count(kind)
        of_kind = [host for host in fitting if kinds[host] == kind]
        if first:
            chosen += of_kind[:count]
            continue
        rows = [of_kind[start : start + count] for start in range(len(of_kind) - count + 1)]
        if rows:
            spread = [(sum(free[host] for host in row), row[-1] - row[0], row[0]) for row in rows]
            chosen += rows[spread.index(min(spread))]
    return chosen


def place_stages(stages: Sequence[StageChoice], space: SearchSpace, cluster: Cluster) -> list[tuple[int, ...]]:
    """Places a slicing's stages on hosts, and returns each one's; raises NoPlanError if they don't fit."""
    kinds = None
    if space.hosts is not None:
        of_hosts = kinds_of(cluster)
        kinds = [[of_hosts[host] for host in space.hosts[stage.submesh]] for stage in stages]
    return place([space.submeshes[stage.submesh] for stage in stages], cluster, kinds)


def packs(space: SearchSpace, cluster: Cluster) -> NDArray[np.bool_]:
    """Returns a mask of those of a search space's submeshes that fit on the hosts in any mixture that has no more
    devices of a kind of host than there are; shape (S,).

    They are whole hosts, and parts of a host that divide each other: three stages of 4 devices don't fit on two hosts
    of 6. Where hosts are alike, with a power of two devices, they are all but those on parts of several hosts.
    """
    packed = np.ones(len(space.submeshes), dtype=np.bool_)
    for s, submesh in enumerate(space.submeshes):
        packed[s] = space.hosts is not None or not takes_part_of_several(submesh, cluster)
        part = submesh.devices_per_host
        for host in (0,) if space.hosts is None else space.hosts[s]:
            whole = cluster.hosts[host].num_devices
            nested = submesh.num_hosts == 1 and part.bit_count() == 1 and whole % part == 0
            packed[s] &= nested or part == whole
    return packed


def packings(space: SearchSpace, cluster: Cluster) -> list[NDArray[np.bool_]]:
    """Returns masks of sets of a search space's submeshes, each of shape (S,), so that the submeshes of one set fit on
    the hosts in any mixture: those that fill host by host and, where hosts are alike, those across hosts.
    """
    by_hosts = packs(space, cluster)
    if space.hosts is not None:
        return [by_hosts]
    whole = np.array([submesh.num_devices in (1, cluster.num_devices) for submesh in space.submeshes])
    return [by_hosts, whole | ~by_hosts]


def capacities(
    space: SearchSpace, cluster: Cluster, available: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns what each of S submeshes takes of each of R capacities, shape (S, R), and how much there is of each, of
    shape (R,): what stages keep to if they fit on the hosts, beside the `available` devices of each kind of host.

    On several hosts of 6 devices, for example, there is one part of 4 on a host at most. There are no capacities where
    each part of a host divides the larger ones and the host.

    References:
        Fekete and Schepers, New classes of fast lower bounds for bin packing problems, Math. Programming 91, 2001.
    """
    kinds, takes, available_of = kinds_of(cluster), list[list[int]](), list[int]()
    for kind, members in enumerate(members_of_kinds(cluster) if space.hosts is not None else []):
        whole = cluster.hosts[members[0]].num_devices
        hosts = int(available[kind]) // whole
        on = [[kinds[host] for host in site].count(kind) for site in space.hosts or ()]
        sizes = {submesh.devices_per_host for submesh, count in zip(space.submeshes, on, strict=True) if count}
        for rule in _rules(sorted({*sizes, whole})) if hosts > 1 else ():
            pairs = zip(space.submeshes, on, strict=True)
            takes.append([count and count * rule[submesh.devices_per_host] for submesh, count in pairs])
            available_of.append(hosts * rule[whole])
    return np.array(takes, dtype=np.int64).reshape(-1, len(space.submeshes)).T, np.array(available_of, dtype=np.int64)


def _rules(sizes: Sequence[int]) -> list[dict[int, int]]:
    """Rules for how much of a host parts of some sizes, ascending, take, by which they never take more than the last of
    them, all of the host; without rules that others imply, such as that by the devices themselves.
    """
    whole, rules = sizes[-1], [dict(zip(sizes, sizes, strict=True))]
    for unit in sizes:
        in_units = {size: size // unit for size in sizes}
        alone = {size: whole if size > whole - unit else size * (size >= unit) for size in sizes}
        for rule in (in_units, alone) if 2 * unit <= whole else (in_units,):
            if not any(_implies(other, rule) for other in rules):
                rules = [*rules[:1], *(other for other in rules[1:] if not _implies(rule, other)), rule]
    return rules[1:]


def _implies(rule: Mapping[int, int], other: Mapping[int, int]) -> bool:
    """Whether parts that keep to one rule keep to the other: they take as large a share or a larger one."""
    whole = max(rule)
    return all(other[size] * rule[whole] <= rule[size] * other[whole] for size in rule)


def kinds_of_sites(space: SearchSpace, cluster: Cluster) -> NDArray[np.int64]:
    """Returns how many devices of each of K kinds of hosts each of a search space's S submeshes takes, shape (S, K)."""
    assert space.hosts is not None, "asked where hosts are unlike"
    kinds = np.array(kinds_of(cluster))
    counts = [np.bincount(kinds[list(hosts)], minlength=int(kinds.max()) + 1) for hosts in space.hosts]
    per_host = [submesh.devices_per_host for submesh in space.submeshes]
    return np.asarray(np.array(counts) * np.array(per_host)[:, None], dtype=np.int64)


def devices_of_kinds(cluster: Cluster, hosts: Sequence[int] | None) -> NDArray[np.int64]:
    """Returns how many devices of each of K kinds of hosts a cluster has, shape (K,): on all hosts, or if `hosts` says
    how many hosts of each kind count, on those.
    """
    members = members_of_kinds(cluster)
    per_host = np.array([cluster.hosts[of_kind[0]].num_devices for of_kind in members])
    return np.asarray(per_host * np.array(list(map(len, members)) if hosts is None else hosts), dtype=np.int64)


def site_of(stage: StagePlan, space: SearchSpace, cluster: Cluster) -> int | None:
    """Returns the index of a stage's submesh in a search space, by its shape and hosts' kinds, or None."""
    if space.hosts is None:
        return space.submeshes.index(stage.submesh) if stage.submesh in space.submeshes else None
    kinds = kinds_of(cluster)
    named = {host.name: kind for host, kind in zip(cluster.hosts, kinds, strict=True)}
    wanted = sorted(named.get(name, -1) for name in stage.hosts)
    for s, (submesh, hosts) in enumerate(zip(space.submeshes, space.hosts, strict=True)):
        if submesh == stage.submesh and sorted(kinds[host] for host in hosts) == wanted:
            return s
    return None
