"""Reduction servers: hosts without accelerators that add up gradients, beside the workers that have them.

Each machine adds up a share of the gradient: every other worker sends it that share, and receives the sum. So a worker
of share y, one of n, sends its other shares and n - 1 copies of its sum, as many bytes as it receives; a server of
share x sends and receives n copies of x.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.costs.communication._alpha_beta import AlphaBeta, CommunicationModel, Group

_ROUNDING = 1e-12


@final
@dataclasses.dataclass(frozen=True)
class ReductionSplit:
    """A split of the adding up of gradients among n workers and k reduction servers: the seconds until every worker has
    the sum, and the share of each gradient that each worker and each server adds up, 0 for a server that doesn't pay.
    """

    seconds: float
    of_workers: tuple[float, ...]
    of_servers: tuple[float, ...]

    @property
    def paying(self) -> int:
        """Returns how many servers pay: those that have a share."""
        return sum(share > 0 for share in self.of_servers)

    @property
    def on_servers(self) -> float:
        """Returns the share of each gradient that all servers together add up."""
        return math.fsum(self.of_servers)


def reduction_split(
    num_bytes: float, workers_bytes_per_s: Sequence[float], servers_bytes_per_s: Sequence[float], within: float = 0.01
) -> ReductionSplit:
    """Returns the fastest split of gradients' adding up among workers and reduction servers, with as few servers as
    pay.

    With n workers of rates b and servers of rates c, the fastest split of M bytes takes

        T = max(M (2n - 2) / (sum(b) + (n - 2) / n sum(c)), M / min(b))

    seconds for n of at least 2 (nothing for one worker), which is the optimum of the linear program in which no machine
    sends or receives more than its rate allows. The first term has all rates used up, the second is what the slowest
    worker takes if it adds up nothing. Where all rates are one b and servers are at most n, T is that of BytePS. Two
    workers need no servers: each has to send its gradient in any case.

    Rates are those of machines' network cards in bytes per second, in each direction; adding up is taken to be as fast
    as receiving, and latencies aren't counted. Servers pay as long as the fastest of them alone take more than 1 +
    `within` times as long as all of them.

    Raises:
        ValueError: there is no worker, a number isn't finite, a rate isn't above 0, or bytes or `within` are negative.

    References:
        Jiang et al., A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous GPU/CPU
        Clusters, OSDI 2020, section 4.

    >>> split = reduction_split(1e9, [1e9] * 4, [1e9] * 6)
    >>> split.seconds, split.paying, split.on_servers
    (1.0, 4, 1.0)
    """
    _check(num_bytes, workers_bytes_per_s, servers_bytes_per_s, within)
    count = len(workers_bytes_per_s)
    fastest = sorted(range(len(servers_bytes_per_s)), key=lambda n: (-servers_bytes_per_s[n], n))
    added = itertools.accumulate((servers_bytes_per_s[n] for n in fastest), initial=0.0)
    each_s = [_per_byte(workers_bytes_per_s, rate) for rate in added]
    enough = each_s[-1] * (1 + within) * (1 + _ROUNDING)
    paying = next(n for n, per_byte in enumerate(each_s) if per_byte <= enough)
    if count <= 2:
        return ReductionSplit(num_bytes * each_s[0], (1 / count,) * count, (0.0,) * len(fastest))
    per_byte, chosen = each_s[paying], set(fastest[:paying])
    own = [max(rate * per_byte - 1, 0.0) / (count - 2) for rate in workers_bytes_per_s]
    theirs = [rate * per_byte / count if n in chosen else 0.0 for n, rate in enumerate(servers_bytes_per_s)]
    # Where the slowest worker says how long it takes, the other machines have rate to spare.
    whole = math.fsum([*own, *theirs])
    return ReductionSplit(
        num_bytes * per_byte, tuple(share / whole for share in own), tuple(share / whole for share in theirs)
    )


def _per_byte(workers: Sequence[float], servers: float) -> float:
    """Returns the seconds per byte of a gradient with workers of these rates, and servers of so much rate together."""
    count = len(workers)
    if count == 1:
        return 0.0
    return max(2 * (count - 1) / (math.fsum(workers) + (count - 2) / count * servers), 1 / min(workers))


def _check(num_bytes: float, workers: Sequence[float], servers: Sequence[float], within: float) -> None:
    if not workers:
        raise ValueError("workers_bytes_per_s is empty, but must have a rate for each worker; give those of all hosts")
    for name, rates in (("workers_bytes_per_s", workers), ("servers_bytes_per_s", servers)):
        for n, rate in enumerate(rates):
            if not (math.isfinite(rate) and rate > 0):
                raise ValueError(f"{name}[{n}] is {rate!r}, but must be a finite number above 0; give bytes per second")
    for name, value in (("num_bytes", num_bytes), ("within", within)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value!r}, but must be a finite number of at least 0; 0 is allowed")


def group_split(group: Group, num_bytes: float) -> ReductionSplit | None:
    """Returns how gradients of the devices of a group are split among its hosts and its cluster's reduction servers;
    None where all devices are on one host, or no server pays.

    A host's rate is that of its slowest link to another host of the group, and a medium that links share is divided
    among the hosts that send or receive over it. Of a server a stage has the share that it has of the cluster's hosts,
    as other stages may synchronise meanwhile.
    """
    cluster, hosts = group.cluster, sorted(group.members)
    if len(hosts) < 2 or not cluster.reduction_servers:
        return None
    part = len(hosts) / len(cluster.hosts)
    rates = [server.bytes_per_s * part for server in cluster.reduction_servers]
    split = reduction_split(num_bytes * group.concurrent, _host_rates(group, hosts), rates)
    return split if split.paying else None


def _host_rates(group: Group, hosts: Sequence[int]) -> list[float]:
    """Returns the bytes per second that each host of a group can send, and receive at the same time."""
    cluster, kinds = group.cluster, group.cluster.link_kinds
    if not any(link.shares for link in kinds.links):
        of_kinds = np.array([link.group_bytes_per_s(group.size) for link in kinds.links])
        between = of_kinds[kinds.numbers[np.ix_(hosts, hosts)]]
        np.fill_diagonal(between, np.inf)
        return np.minimum(between.min(axis=0), between.min(axis=1)).tolist()
    pairs = [(a, b) for a in hosts for b in hosts if a != b]
    ends: dict[str, tuple[set[int], set[int]]] = {}
    for a, b in pairs:
        for medium in cluster.links[a][b].shares:
            senders, receivers = ends.setdefault(medium, (set(), set()))
            senders.add(a)
            receivers.add(b)
    rates = dict.fromkeys(hosts, math.inf)
    for a, b in pairs:
        link = cluster.links[a][b]
        shared = (cluster.media.get(medium, link.bytes_per_s) / min(map(len, ends[medium])) for medium in link.shares)
        rate = min((link.group_bytes_per_s(group.size), *shared))
        rates[a], rates[b] = min(rates[a], rate), min(rates[b], rate)
    return [rates[host] for host in hosts]


def served_s(model: CommunicationModel, num_bytes: FloatArray, group: Group) -> NDArray[np.float64] | None:
    """Returns the seconds in which a group's gradients are added up with its cluster's reduction servers, in the shape
    of `num_bytes`; None where no server pays.

    Devices of a host add up among themselves first and share the sum last. Between hosts shares go to who adds them up
    and come back. Where the model says that an all-reduce between the hosts takes longer than the rates of their links
    do, this takes as many times longer.
    """
    split = group_split(group, 1.0)
    if split is None:
        return None
    inside = np.zeros_like(num_bytes)
    for host, members in group.members.items():
        inside_host = Group(group.cluster, (host,) * members, group.concurrent)
        both = (model.seconds(kind, num_bytes, inside_host) for kind in ("reduce_scatter", "all_gather"))
        inside = np.maximum(inside, sum(both, np.zeros_like(num_bytes)))
    across = Group(group.cluster, tuple(sorted(group.members)), group.concurrent)
    nominal_s = AlphaBeta().seconds("all_reduce", num_bytes, across)
    slower = np.maximum(model.seconds("all_reduce", num_bytes, across) / np.where(nominal_s > 0, nominal_s, 1.0), 1.0)
    latency_s = max(link.latency_s for link in group.cluster.link_kinds.between(across.hosts))
    return np.where(num_bytes > 0, inside + slower * (2 * latency_s + num_bytes * split.seconds), 0.0)
