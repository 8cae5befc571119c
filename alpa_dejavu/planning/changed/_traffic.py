"""The time that hosts take to send one another what moves, over the links and media of a cluster."""

from __future__ import annotations

from collections import defaultdict
from typing import final

from alpa_dejavu.problem import Cluster

__all__ = ["Traffic"]


@final
class Traffic:
    """All that the hosts of a cluster send at a time: each sends, and takes in, one thing after another."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._numbers = cluster, cluster.host_numbers
        self._sent_s, self._taken_in_s = defaultdict[str, float](float), defaultdict[str, float](float)
        self._media_bytes = defaultdict[str, float](float)

    def link_s(self, source: str, target: str, num_bytes: float) -> float:
        """Returns the seconds of some bytes from one host to another, alone on their link."""
        latency_s, bytes_per_s = self._cluster.links[self._numbers[source]][self._numbers[target]].sending
        return latency_s + num_bytes / bytes_per_s

    def ready_s(self, source: str, target: str, num_bytes: float) -> float:
        """Returns when a host would have taken in some bytes, behind all that it takes in already."""
        return self._taken_in_s[target] + self.link_s(source, target, num_bytes)

    def send(self, source: str, target: str, num_bytes: float) -> None:
        """Adds bytes that one host sends to another; to itself over the link between its devices."""
        self._taken_in_s[target] = self.ready_s(source, target, num_bytes)
        self._sent_s[source] += self.link_s(source, target, num_bytes)
        for medium in self._cluster.links[self._numbers[source]][self._numbers[target]].shares:
            self._media_bytes[medium] += num_bytes

    @property
    def seconds(self) -> float:
        """Returns the seconds until all has arrived: those of the busiest host, or of the busiest medium."""
        media = [self._media_bytes[name] / rate for name, rate in self._cluster.media.items()]
        return max([*media, *self._sent_s.values(), *self._taken_in_s.values()], default=0.0)
