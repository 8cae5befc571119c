"""The figures of the network between two hosts, and the link that it becomes below the runtime."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.problem import Link

__all__ = ["Net", "carried"]

_LEAST_S = 1e-7


@final
@dataclasses.dataclass(frozen=True)
class Net:
    """A network's figures for one message at a time: seconds before it is there, and bytes per second."""

    latency_s: float
    bytes_per_s: float


def carried(known: Link, net: Net, reference: Net | None, copied: bool) -> Link:
    """Returns the link between two hosts, as it is known, with the network that was measured between them.

    Bytes of devices that are CPUs, and of sends that go by the runtime's transport, are copied before and after the
    network has them, so that the seconds add up. Others go over the network alone.

    Args:
        known: the link as it is known: by an estimate, or by measured collectives and pipelines.
        net: what was measured between these hosts.
        reference: what was measured between the two hosts that `known` was measured on; None: it is an estimate.
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
