"""Which hosts are interchangeable."""

from __future__ import annotations

import dataclasses

from alpa_dejavu.problem._cluster import Cluster


def host_kinds(cluster: Cluster) -> tuple[int, ...]:
    """For each host the number of its kind, from 0 in the order of the hosts.

    Two hosts are of one kind if the cluster stays the same when they change places: devices, the links within, and
    those to and from every other host are alike. So all hosts of a kind have the same link to each host of another.

    >>> from alpa_dejavu.clusters import named_cluster
    >>> host_kinds(named_cluster("p3.16xlarge", 4))
    (0, 0, 0, 0)
    """
    found: list[int] = []
    first: list[int] = []
    for host in range(len(cluster.hosts)):
        kind = next((kind for kind, other in enumerate(first) if _alike(cluster, host, other)), len(first))
        if kind == len(first):
            first.append(host)
        found.append(kind)
    return tuple(found)


def _alike(cluster: Cluster, a: int, b: int) -> bool:
    ours, theirs, links = cluster.hosts[a], cluster.hosts[b], cluster.links
    return (
        dataclasses.replace(ours, name="") == dataclasses.replace(theirs, name="")
        and links[a][a] == links[b][b]
        and links[a][b] == links[b][a]
        and all(
            links[a][c] == links[b][c] and links[c][a] == links[c][b]
            for c in range(len(cluster.hosts))
            if c not in (a, b)
        )
    )
