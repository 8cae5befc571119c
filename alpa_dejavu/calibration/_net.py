"""The figures of the network between two hosts, the link that it becomes below the runtime, and rounds of probes."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias, final

from alpa_dejavu.problem import Link

__all__ = ["Net", "Pair", "carried", "rounds"]

_LEAST_S = 1e-7


@final
@dataclasses.dataclass(frozen=True)
class Net:
    """The latency, in seconds, and the rate, in bytes per second, of the network between two hosts, for one message at
    a time.
    """

    latency_s: float
    bytes_per_s: float


def carried(known: Link, net: Net, reference: Net | None, copied: bool) -> Link:
    """Returns the link between two hosts that follows from a known link and the network that was measured between them.

    Bytes of devices that are CPUs, and of sends that go by the runtime's transport, are copied before and after the
    network carries them, so the seconds of copying and of the network add up. Others go over the network alone.

    Args:
        known: the link as it is known: by an estimate, or by measured collectives and pipelines.
        net: the network that was measured between these hosts.
        reference: the network between the two hosts that `known` was measured on; None: `known` is an estimate.
        copied: whether the devices are CPUs.
    """
    send: tuple[float | None, float | None] = (None, None)
    if known.send_latency_s is not None or known.send_bytes_per_s is not None or copied:
        send = _added(known.sending, net, reference)
    if copied:
        latency_s, rate = _added((known.latency_s, known.bytes_per_s), net, reference)
    elif reference is None:
        latency_s, rate = net.latency_s, net.bytes_per_s
    else:
        latency_s = max(known.latency_s + net.latency_s - reference.latency_s, _LEAST_S)
        rate = known.bytes_per_s * net.bytes_per_s / reference.bytes_per_s
    return Link(latency_s, rate, *send)


def _added(known: tuple[float, float], net: Net, reference: Net | None) -> tuple[float, float]:
    """Latency and rate of what is copied and sent: what is known without the network it was measured over, and the new.

    An estimate is taken for that of the copies alone.
    """
    latency_s, per_byte = known[0], 1 / known[1]
    if reference is not None:
        latency_s = max(latency_s - reference.latency_s, 0.0)
        per_byte = max(per_byte - 1 / reference.bytes_per_s, 0.0)
    return latency_s + net.latency_s, 1 / (per_byte + 1 / net.bytes_per_s)


Pair: TypeAlias = tuple[int, int]


def rounds(count: int) -> list[list[Pair]]:
    """Returns rounds of disjoint pairs of `count` hosts, in which each pair occurs once: count - 1 rounds, or count if
    that is odd.

    References:
        The circle method: Kirkman, On a problem in combinations, Cambridge and Dublin Mathematical Journal 2, 1847.

    >>> rounds(4)
    [[(0, 3), (1, 2)], [(0, 2), (3, 1)], [(0, 1), (2, 3)]]
    >>> [len(each) for each in rounds(5)]
    [2, 2, 2, 2, 2]
    """
    seats: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(a, b) for a, b in facing if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found
