"""Measured links from host to host, by the hosts' names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

from alpa_dejavu.problem import Cluster, Link

__all__ = ["HostLinks"]


@final
@dataclasses.dataclass(frozen=True)
class HostLinks:
    """The measured links between all pairs of hosts, one in each direction.

    Attributes:
        hosts: the hosts' names.
        links: `links[a][b]` goes from host a to host b; None where a is b, which wasn't measured.
        media: bytes per second of each medium that links share, by the name that `Link.shares` has.

    Raises:
        ValueError: a host is there twice, or the links aren't a row and a column for each.
    """

    hosts: tuple[str, ...]
    links: tuple[tuple[Link | None, ...], ...]
    media: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        twice = next((name for name in self.hosts if self.hosts.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"host links: the host {twice!r} is there twice; measure the links anew")
        if len(self.links) != len(self.hosts) or any(len(row) != len(self.hosts) for row in self.links):
            raise ValueError(
                f"host links: there are {len(self.links)} rows of {[len(row) for row in self.links]} links, but "
                f"{len(self.hosts)} hosts need a row and a column each; measure the links anew"
            )
        for a, row in enumerate(self.links):
            for b, link in enumerate(row):
                if (link is None) != (a == b):
                    said = "a link to itself" if a == b else f"no link to {self.hosts[b]!r}"
                    raise ValueError(f"host links: {self.hosts[a]!r} has {said}; measure the links anew")

    def applied_to(self, cluster: Cluster, name: str) -> Cluster:
        """Returns the cluster with the measured links between its hosts; it may have fewer hosts than were measured.

        Args:
            cluster: the cluster, whose hosts' names must be among the measured ones.
            name: the name of the calibration with these links, for errors.

        Raises:
            ValueError: the cluster has a host that wasn't measured, or a link that its memory couldn't keep up with.
        """
        unknown = [host.name for host in cluster.hosts if host.name not in self.hosts]
        if unknown:
            raise ValueError(
                f"the cluster {cluster.name} has the host {unknown[0]!r}, but the calibration {name} has links of "
                f"{', '.join(map(repr, self.hosts))} only; measure them anew with `alpa-dejavu calibrate --links`, or "
                "plan for the cluster that it was made on"
            )
        places = [self.hosts.index(host.name) for host in cluster.hosts]
        links = tuple(
            tuple(self.links[places[a]][places[b]] or own for b, own in enumerate(row))
            for a, row in enumerate(cluster.links)
        )
        applied = dataclasses.replace(cluster, links=links, media={**cluster.media, **self.media})
        applied.check_rates()
        return applied
