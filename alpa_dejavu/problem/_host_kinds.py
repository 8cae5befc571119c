"""Which hosts are interchangeable."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from alpa_dejavu.problem._cluster import Cluster
from alpa_dejavu.problem._link import Link


def host_kinds(cluster: Cluster) -> tuple[int, ...]:
    """Returns for each host of a cluster the number of its kind (hosts of one kind are interchangeable), from 0 in the
    order of the hosts.

    Two hosts are of one kind if the cluster stays the same when they change places: devices, their own memory, the
    links within, and those to and from every other host are alike. So all hosts of a kind have the same link to each
    host of another.
    Names of media that links share (`Link.shares`) may differ: each host's network card has a name of its own.

    >>> from alpa_dejavu.clusters import named_cluster
    >>> host_kinds(named_cluster("p3.16xlarge", 4))
    (0, 0, 0, 0)
    """
    found: list[int] = []
    first: list[int] = []
    uses = Counter(medium for row in cluster.links for link in row for medium in link.shares)
    for host in range(len(cluster.hosts)):
        kind = next((kind for kind, other in enumerate(first) if _alike(cluster, host, other, uses)), len(first))
        if kind == len(first):
            first.append(host)
        found.append(kind)
    return tuple(found)


def _alike(cluster: Cluster, a: int, b: int, uses: Counter[str]) -> bool:
    ours, theirs, links = cluster.hosts[a], cluster.hosts[b], cluster.links
    if dataclasses.replace(ours, name="") != dataclasses.replace(theirs, name=""):
        return False
    pairs = [(links[a][a], links[b][b]), (links[a][b], links[b][a])]
    for c in range(len(cluster.hosts)):
        if c not in (a, b):
            pairs += [(links[a][c], links[b][c]), (links[c][a], links[c][b])]
    return all(_same_figures(*pair) for pair in pairs) and (not uses or _same_media(cluster, pairs, uses))


def _same_figures(one: Link, other: Link) -> bool:
    return one == other or (
        len(one.shares) == len(other.shares) > 0
        and dataclasses.replace(one, shares=()) == dataclasses.replace(other, shares=())
    )


def _same_media(cluster: Cluster, pairs: Sequence[tuple[Link, Link]], uses: Counter[str]) -> bool:
    """Whether media keep what goes over them when two hosts change places: `pairs` are the links that they exchange.

    The media of the one become those of the other. What links of other hosts go over as well has to stay.
    """
    renamed: dict[str, str] = {}
    exchanged = Counter[str]()
    for one, other in pairs:
        for here, there in zip(one.shares, other.shares, strict=True):
            exchanged.update((here, there))
            if renamed.setdefault(here, there) != there or renamed.setdefault(there, here) != here:
                return False
    return all(
        cluster.media.get(here) == cluster.media.get(there) and (here == there or uses[here] == exchanged[here])
        for here, there in renamed.items()
    )
