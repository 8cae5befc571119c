"""The choices for a stage: submeshes of a cluster, and logical meshes of them with remat and a ZeRO level.

Where hosts are of unlike kinds, a submesh is on hosts of one kind, or of a mixture that makes sense.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import final

from alpa_dejavu._util import units
from alpa_dejavu.clusters.host_classes import (
    across_hosts,
    by_sites,
    kinds_of,
    members_of_kinds,
    slow_inside,
    takes_part_of_several,
)
from alpa_dejavu.problem import Cluster, MeshConfig, NoPlanError, SearchSpace, Submesh

_FORCED = {"force_batch_dim_to_mesh_dim": 0}
_OPTIONS = {0: {}, 2: {"prefer_reduce_scatter": True}, 3: {"force_zero_stage_3": True}}
"""Options of Alpa's auto-sharding pass, by ZeRO level."""


@final
@dataclasses.dataclass(frozen=True)
class DivisionChoices:
    """The choices of how a stage's devices divide a model beside its batch; by default its operators alone.

    Attributes:
        pipeline: how many stages, of equally many devices each, there are; None: any number.
        tensor: how many devices share operators; None: any number.
        context: how many devices share a sample's tokens; None: the least power of two by which there are samples for
            all data-parallel devices, as more of them do the same work and exchange more.
        experts: among how many data-parallel devices experts are divided; None: any number that divides both.
        shard: in groups of how many data-parallel devices ZeRO shares what it shares: "all"; "host", those in a host; a
            number; or None, which is all of these for hosts, and groups of 2, 4 ... hosts.
        tokens, num_experts: of a sample, and of the model; what divides them may be chosen.
        expert_tensor: whether experts may also be divided among tensor-parallel devices, which have each one whole.
    """

    pipeline: int | None = None
    tensor: int | None = None
    context: int | None = 1
    experts: int | None = 1
    shard: int | str | None = "all"
    tokens: int = 1
    num_experts: int = 1
    expert_tensor: bool = False

    @property
    def plain(self) -> bool:
        """Returns whether devices divide the batch and the operators alone."""
        return (self.context, self.experts, self.shard) == (1, 1, "all")

    def contexts(self, data: int, micro_batch: int) -> list[int]:
        """Returns how many of so many data-parallel devices may share a sample's tokens, so that micro-batches of so
        many samples are divided evenly among the others.

        >>> choices = DivisionChoices(context=None, tokens=8192)
        >>> choices.contexts(8, 16), choices.contexts(8, 2), choices.contexts(6, 2)
        ([1], [4], [])
        """
        ways = data // math.gcd(data, micro_batch) if self.context is None else self.context
        fits = data % ways == 0 and micro_batch % (data // ways) == 0 and self.tokens % ways == 0
        return [ways] if fits and (ways.bit_count() == 1 or self.context) else []

    def expert_ways(self, data: int, tensor: int) -> list[tuple[int, int]]:
        """Returns among how many of so many data-parallel devices, of as many tensor-parallel ones each, experts may be
        divided, and how many share the products of one; 0: all the tensor-parallel ones.

        >>> DivisionChoices(experts=None, num_experts=8).expert_ways(12, 2)
        [(1, 0), (2, 0), (4, 0)]
        >>> DivisionChoices(experts=8, num_experts=8, expert_tensor=True).expert_ways(4, 2)
        [(8, 1)]
        """
        apart = [(data * tensor, 1)] if self.expert_tensor and tensor > 1 else []
        return [
            (ways, same if ways > 1 else 0)
            for devices, same in ((data, 0), *apart)
            for ways in divisors(math.gcd(devices, self.num_experts))
            if self.experts in (None, ways) and (ways > 1 or not same)
        ]

    def shards(self, data: int, in_host: int) -> list[int]:
        """Returns in groups of how many of the data-parallel devices, of which so many are in a host, ZeRO may share
        something; 0: among all.

        >>> DivisionChoices(shard=None).shards(32, 8), DivisionChoices(shard="host").shards(4, 8)
        ([8, 16, 0], [0])
        """
        in_host = max(in_host, 1)
        if isinstance(self.shard, int):
            return [] if data % self.shard else [self.shard % data]
        groups = [in_host << n for n in range((data // in_host).bit_length())]
        groups = [group for group in groups if 1 < group < data and data % group == 0]
        if self.shard == "host":
            return [0] if in_host >= data else groups[:1] if in_host in groups else []
        return [0] if self.shard else [*groups, 0]


def divisors(number: int) -> list[int]:
    """Returns all divisors of a number, ascending.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [n for n in range(1, number + 1) if number % n == 0]


SHARDS = ("host", "all")
"""The names of groups of data-parallel devices in which ZeRO may share what it shares."""
PLAIN_CHOICES = DivisionChoices()
"""The choices of a model whose batch and operators alone are divided."""
_LARGE = 16
"""Parts of more devices than that are equal ones, where a host has such."""


def submeshes(cluster: Cluster, kind: str = "power_of_two") -> tuple[Submesh, ...]:
    """Returns the submeshes that stages on a cluster may have: parts of a host, then whole hosts; ValueError for an
    unknown kind of submeshes.

    Parts have 1, 2, 4 ... devices, or a number that divides those of the host, so that like parts tile it: hosts of 6
    are also taken as twice 3, as 4 and 2, or whole. Hosts that can be divided into equal parts of 16 devices or more
    are cut into these, or into 1, 2, 4, 8 or 16: a rack of 72 into 18, 24, 36 or 72, not into 32, 32 and 8. Where hosts
    have unlike numbers of devices, they are the submeshes of each kind of host, and mixtures of kinds. Where links
    within hosts are slower than those between them, submeshes on parts of several hosts are added.

    The kinds are "power_of_two" (parts of a host, then 1, 2, 4 ... hosts), "small_power_of_two" (at most 4 hosts) and
    "all" (every number of hosts). All of a host, and all of the cluster, is always among them.

    References:
        Zheng et al., Alpa, OSDI 2022, section 5.2: why these fill every cluster.

    >>> from alpa_dejavu.clusters import named_cluster
    >>> [(s.num_hosts, s.devices_per_host) for s in submeshes(named_cluster("p3.16xlarge", 2))]
    [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8)]
    """
    if len({host.num_devices for host in cluster.hosts}) > 1:
        return tuple(dict.fromkeys(submesh for submesh, _ in _sites(cluster, kind)))
    most, hosts = cluster.hosts[0].num_devices, len(cluster.hosts)
    several = _several(hosts, kind)
    whole = [*several, hosts] if hosts > 1 else []
    shapes = dict.fromkeys([*((1, n) for n in _parts(most)), *((n, most) for n in whole)])
    across = across_hosts(cluster, _parts(most), several) if slow_inside(cluster) else []
    return (*(Submesh(*shape) for shape in shapes), *across)


def _parts(devices: int) -> list[int]:
    """Returns the numbers of a host's devices that a stage may take.

    >>> _parts(6), _parts(8), _parts(72)
    ([1, 2, 3, 4, 6], [1, 2, 4, 8], [1, 2, 4, 8, 16, 18, 24, 36, 72])
    """
    alike = divisors(devices)
    if any(_LARGE <= n < devices for n in alike):
        return [n for n in range(1, devices + 1) if (devices % n == 0 if n > _LARGE else n.bit_count() == 1)]
    return [n for n in range(1, devices + 1) if n.bit_count() == 1 or n in alike]


def _several(hosts: int, kind: str) -> list[int]:
    """The numbers of hosts, above one, that a stage may take of so many."""
    several = {
        "power_of_two": [n for n in range(2, hosts + 1) if n.bit_count() == 1],
        "small_power_of_two": [n for n in (2, 4) if n <= hosts],
        "all": list(range(2, hosts + 1)),
    }
    if kind not in several:
        raise ValueError(f"submeshes is {kind!r}; choose one of {', '.join(map(repr, several))}")
    return several[kind]


def _sites(cluster: Cluster, kind: str) -> tuple[_Site, ...]:
    """Submeshes with the kinds of their hosts; all hosts of a kind are among them, but for "small_power_of_two"."""

    def several(hosts: int) -> list[int]:
        small = kind == "small_power_of_two"
        return [*dict.fromkeys([*_several(hosts, kind), *([] if small else [hosts])])]

    apart = slow_inside(cluster) and max(kinds_of(cluster)) == 0
    across = across_hosts(cluster, _parts(cluster.hosts[0].num_devices), several(len(cluster.hosts))) if apart else []
    every = tuple((submesh, tuple(range(submesh.num_hosts))) for submesh in across)
    return tuple(dict.fromkeys([*_unlike_sites(cluster, several), *every]))


def search_space(
    cluster: Cluster,
    micro_batch: int,
    kind: str = "power_of_two",
    remat: Sequence[str] = ("none",),
    zero: Sequence[int] = (0,),
    imbalance: float = math.inf,
    replicas: int = 1,
    divisions: DivisionChoices = PLAIN_CHOICES,
) -> SearchSpace:
    """Returns the search space of a stage: every split of every submesh into data and tensor parallelism, with every
    remat and ZeRO level, and with context and expert parallelism and hybrid sharding where these may be chosen.

    Tensor-parallel devices are in one host, but for stages on parts of several hosts, and the number of data-parallel
    ones divides the micro-batch, but for those that share a sample's tokens. If the number of all devices does, they
    are offered in one row, too, which Alpa's auto-sharding pass may divide as it likes, such as among the experts of a
    mixture. A submesh that no split suits isn't offered. ZeRO levels above 0 are offered where there are several
    data-parallel devices. Where replicas are asked for, the one row isn't offered, since Alpa's pass might cut
    something else than the batch there.
    On hosts of unlike kinds (`host_kinds`) a submesh occurs once for each choice of kinds of hosts that it may be on.
    The hosts are also named where they are alike, but have a number of devices that isn't a power of two.

    Args:
        cluster: the cluster with the hosts.
        micro_batch: the number of samples of a micro-batch.
        kind: the kind of submeshes: "power_of_two", "small_power_of_two" or "all", as `submeshes` takes it.
        remat: the choices of remat, from "none" and "layer".
        zero: the choices of the ZeRO level, from 0, 2 and 3.
        imbalance: the factor, less one, by which a stage's shares of operations and devices may differ.
        replicas: the least number of data-parallel replicas of each stage.
        divisions: how devices may divide the model beside its batch; if more than its operators, the one row isn't
            offered.

    Raises:
        ValueError: the kind of submeshes is unknown.
        NoPlanError: no submesh has so many replicas, or can be divided so, or the micro-batch can't be divided among
            them.
    """
    on_hosts = by_sites(cluster)

    @functools.cache
    def of_shape(submesh: Submesh) -> list[MeshConfig]:
        if divisions.pipeline and submesh.num_devices * divisions.pipeline != cluster.num_devices:
            return []
        across = takes_part_of_several(submesh, cluster)
        most = submesh.num_devices if across else submesh.devices_per_host
        every = _configs(submesh, micro_batch, remat, zero, on_hosts and not across, most, divisions)
        return [config for config in every if replicas == 1 or (config.batch_forced and config.replicas >= replicas)]

    if not on_hosts:
        choices = tuple(submesh for submesh in submeshes(cluster, kind) if of_shape(submesh))
        _check_offered(len(choices), replicas, zero, divisions, cluster, micro_batch)
        return SearchSpace(choices, _even([of_shape(submesh) for submesh in choices]), imbalance)
    offered = [site for site in _sites(cluster, kind) if of_shape(site[0])]
    _check_offered(len(offered), replicas, zero, divisions, cluster, micro_batch)
    rows = _even([of_shape(submesh) for submesh, _ in offered])
    return SearchSpace(tuple(s for s, _ in offered), rows, imbalance, tuple(hosts for _, hosts in offered))


def on_sites(space: SearchSpace, cluster: Cluster) -> SearchSpace:
    """Returns the search space in which each submesh occurs once for each choice of kinds of hosts that it may be on;
    as it is where hosts are alike, with a power of two devices. NoPlanError if the cluster hasn't the hosts for any
    submesh.
    """
    if not by_sites(cluster):
        return space
    rows = dict(zip(space.submeshes, space.configs, strict=True))
    offered = [site for site in _sites(cluster, "all") if site[0] in rows]
    if not offered:
        raise _none_of(space, cluster)
    chosen, hosts = zip(*offered, strict=True)
    return SearchSpace(chosen, tuple(rows[submesh] for submesh in chosen), space.allowed_imbalance, hosts)


def fitting(space: SearchSpace, cluster: Cluster) -> SearchSpace:
    """Returns the part of a search space that a cluster has the hosts for; NoPlanError if there is none."""
    devices = sorted((host.num_devices for host in cluster.hosts), reverse=True)
    chosen = [
        s
        for s, submesh in enumerate(space.submeshes)
        if submesh.num_hosts <= len(devices) and submesh.devices_per_host <= devices[submesh.num_hosts - 1]
    ]
    if not chosen:
        raise _none_of(space, cluster)
    return space.part(chosen)


def _check_offered(
    choices: int, replicas: int, zero: Sequence[int], divisions: DivisionChoices, cluster: Cluster, micro_batch: int
) -> None:
    if choices:
        return
    if replicas > 1:
        raise NoPlanError(
            f"replicas is {replicas}, but no stage on {cluster.name} can have so many: they are devices that divide a "
            f"micro-batch of {micro_batch} samples; give fewer replicas, fewer micro-batches or more devices"
        )
    names = "pipeline", "tensor", "context", "experts", "shard"
    asked = {name: getattr(divisions, name) for name in names}
    asked = {name: value for name, value in asked.items() if value not in (None, getattr(PLAIN_CHOICES, name))}
    if asked:
        raise NoPlanError(
            f"{' and '.join(f'{name} is {value}' for name, value in asked.items())}, but no stage on {cluster.name} "
            f"can be divided so with micro-batches of {units.counted(micro_batch, 'sample')}; leave one of them out, "
            "or give other numbers of micro-batches or devices"
        )
    raise NoPlanError(
        f"zero is {' or '.join(map(str, zero))}, but no stage on {cluster.name} has replicas with micro-batches "
        f"of {units.counted(micro_batch, 'sample')}; give zero 0, too, or fewer micro-batches"
    )


def _none_of(space: SearchSpace, cluster: Cluster) -> NoPlanError:
    shapes = [(submesh.num_hosts, submesh.devices_per_host) for submesh in space.submeshes]
    return NoPlanError(f"none of the submeshes {shapes} is on hosts of {cluster.name}; give shapes of its hosts")


def _configs(
    submesh: Submesh,
    micro_batch: int,
    remat: Sequence[str],
    zero: Sequence[int],
    in_host: bool,
    most: int,
    divisions: DivisionChoices,
) -> list[MeshConfig]:
    """Returns a submesh's configs with at most so many tensor-parallel devices, all in one host if `in_host`."""
    size, configs = submesh.num_devices, list[MeshConfig]()
    splits = [
        (size // along, along)
        for along in range(1, most + 1)
        if size % along == 0
        and divisions.tensor in (None, along)
        and divisions.contexts(size // along, micro_batch)
        and not (in_host and submesh.devices_per_host % along)
    ]
    meshes = [(split, _FORCED) for split in splits]
    if (size, 1) in splits and size > 1 and divisions.plain:
        meshes.append(((size, 1), {}))
    for mesh, batch in meshes:
        groups = divisions.shards(mesh[0], submesh.devices_per_host // mesh[1])
        unshared = [(0, 0)] if divisions.shard in (None, "all") else []
        levels = [pair for level in zero for pair in (itertools.product([level], groups) if level else unshared)]
        ways = itertools.product(divisions.contexts(mesh[0], micro_batch), divisions.expert_ways(*mesh))
        configs += [
            MeshConfig(
                mesh, *mesh, options={**batch, **_OPTIONS[level]}, remat=again, zero=level, context_parallel=context,
                expert_parallel=expert, sharded=sharded, expert_tensor=same,
            )
            for context, (expert, same) in ways
            for again in remat
            for level, sharded in levels
            if level == 0 or mesh[0] > 1
        ]  # fmt: skip
    return configs


def _even(rows: Sequence[Sequence[MeshConfig]]) -> tuple[tuple[MeshConfig | None, ...], ...]:
    """Returns the rows with the same length: shorter ones end with None."""
    width = max(1, *map(len, rows))
    return tuple((*row, *[None] * (width - len(row))) for row in rows)


_Site = tuple[Submesh, tuple[int, ...]]
"""A submesh, and the hosts that stand for all of their kinds."""
_FEW, _MIXTURES = 3, 128
"""Up to so many kinds of hosts, and more kinds if there are no more mixtures than this, are mixed freely."""


def _unlike_sites(cluster: Cluster, several: Callable[[int], Sequence[int]]) -> tuple[_Site, ...]:
    """The submeshes that stages may have on unlike hosts: parts of a host and whole hosts of each kind, then mixtures.

    A mixture takes equally many devices of each host: all of the smallest one's. If there are few kinds, every mixture
    of numbers of hosts from `several` is offered; if there are many, only mixtures of all hosts of some kinds: those
    that result from joining kinds by their links, the fastest first, and those of the kinds with the fastest devices.
    All hosts together are always offered. `several` tells of a number of hosts how many of them a stage may take.
    """
    members, offered = members_of_kinds(cluster), list[_Site]()
    for hosts in members:
        whole = cluster.hosts[hosts[0]].num_devices
        offered += ((Submesh(1, part), (hosts[0],)) for part in _parts(whole))
        offered += ((Submesh(n, whole), tuple(hosts[:n])) for n in several(len(hosts)) if n > 1)
    for counts in (*_mixtures(cluster, members, several), tuple(map(len, members))):
        chosen = tuple(host for hosts, count in zip(members, counts, strict=True) for host in hosts[:count])
        offered.append((Submesh(len(chosen), min(cluster.hosts[host].num_devices for host in chosen)), chosen))
    return tuple(dict.fromkeys(offered))


def _mixtures(
    cluster: Cluster, members: Sequence[Sequence[int]], several: Callable[[int], Sequence[int]]
) -> Iterator[tuple[int, ...]]:
    """How many hosts of each kind."""
    most = max((*several(len(cluster.hosts)), 1))
    numbers = [sorted({0, 1, *several(len(hosts)), *([len(hosts)] if len(hosts) <= most else [])}) for hosts in members]
    if len(members) > _FEW and math.prod(map(len, numbers)) > _MIXTURES:
        for union in _unions(cluster, [hosts[0] for hosts in members]):
            yield tuple(len(hosts) if kind in union else 0 for kind, hosts in enumerate(members))
        return
    for counts in itertools.product(*numbers):
        if sum(count > 0 for count in counts) > 1 and sum(counts) <= most:
            yield counts


def _unions(cluster: Cluster, first: Sequence[int]) -> Iterator[frozenset[int]]:
    """Sets of kinds, given a host of each; all of them is the last."""

    def rate(pair: tuple[int, int]) -> float:
        ahead, back = cluster.links[first[pair[0]]][first[pair[1]]], cluster.links[first[pair[1]]][first[pair[0]]]
        return min(ahead.bytes_per_s, back.bytes_per_s)

    fastest = sorted(range(len(first)), key=lambda kind: -cluster.hosts[first[kind]].device.rate("float32"))
    for count in range(2, len(fastest)):
        yield frozenset(fastest[:count])
    joined = {kind: frozenset([kind]) for kind in range(len(first))}
    for a, b in sorted(itertools.combinations(range(len(first)), 2), key=rate, reverse=True):
        if joined[a] != joined[b]:
            union = joined[a] | joined[b]
            joined |= dict.fromkeys(union, union)
            yield union
