"""The clusters that plans are measured on, and what is trained there.

The hosts' numbers say nothing of who is near whom: the islands' hosts take turns, and the slow host is in the middle.
A planner that takes links for equal puts neighbouring stages on hosts that are far from each other.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import final

from _measured_jobs import Job
from _measured_models import perceptron

NUM_HOSTS = 4
FAST, SLOW = 40e6, 4e6
"""Bytes per second of a link, each way."""
SHARE = 0.35
"""The share of a core that a host's device has: together with the runtime's own work they fit on two cores."""

_EVEN = Job("even", partial(perceptron, widths=(1024,) * 9), 1024, 8)
_WAISTED = Job("waisted", partial(perceptron, widths=(*(1024,) * 4, 128, *(1024,) * 4)), 1024, 8)
_UNEVEN = Job("uneven", partial(perceptron, widths=(512, 512, 512, 512, 1024, 1024, 1536, 1536, 1024)), 1024, 8)


@final
@dataclasses.dataclass(frozen=True)
class Case:
    """A cluster and a job.

    Attributes:
        bytes_per_s: `[a][b]` is the rate from host a to host b; the diagonal isn't looked at.
        to_win: whether plans that know the links are to be 1.5 times as fast as Alpa's here, if any is.
    """

    name: str
    about: str
    job: Job
    bytes_per_s: tuple[tuple[float, ...], ...]
    shares: tuple[float, ...]
    to_win: bool = False
    micro_batches: int = 8

    @property
    def num_hosts(self) -> int:
        """The number of the hosts of the cluster."""
        return len(self.shares)


def _links(*islands: frozenset[int], slow_host: int | None = None) -> tuple[tuple[float, ...], ...]:
    """Fast, but slow from island to island, and to and from a slow host."""

    def rate(a: int, b: int) -> float:
        apart = any((a in island) != (b in island) for island in islands)
        return SLOW if apart or slow_host in (a, b) else FAST

    return tuple(tuple(rate(a, b) for b in range(NUM_HOSTS)) for a in range(NUM_HOSTS))


_EQUAL = (SHARE,) * NUM_HOSTS
_HALF = (SHARE, SHARE / 2, SHARE, SHARE)
_ISLANDS = frozenset({0, 2}), frozenset({1, 3})
CASES = {
    case.name: case
    for case in (
        Case("uniform", "equal hosts, equal links", _EVEN, _links(), _EQUAL),
        Case("slow link", "host 1 has links of 1/10", _WAISTED, _links(slow_host=1), _EQUAL, to_win=True),
        Case("islands", "hosts 0 and 2, 1 and 3; 1/10 between them", _WAISTED, _links(*_ISLANDS), _EQUAL, to_win=True),
        Case("half compute", "host 1 computes half as fast", _EVEN, _links(), _HALF),
        Case("both", "islands, and host 1 computes half as fast", _WAISTED, _links(*_ISLANDS), _HALF),
        Case("uneven model", "equal hosts, layers of unlike size", _UNEVEN, _links(), _EQUAL),
    )
}
