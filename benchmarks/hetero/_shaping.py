"""Rates of the links between hosts, by the token bucket filter of `tc`, each direction on its own."""

from __future__ import annotations

from collections.abc import Sequence

from alpa_dejavu._util import units
from hetero._commands import ran
from hetero._namespaces import Network

__all__ = ["shape"]

_BURST, _LIMIT = "32kb", "256kb"
_PACKET_BYTES = 16000
"""What the kernel hands over at once is kept below the bucket, which would be filled anew by each."""


def shape(net: Network, bytes_per_s: Sequence[Sequence[float]]) -> None:
    """Sets the rates of all links between hosts, in place of those that they had.

    Args:
        net: the hosts.
        bytes_per_s: `[a][b]` is from host a to host b; the diagonal isn't looked at.

    Raises:
        ValueError: a rate isn't positive.
    """
    for a, row in enumerate(bytes_per_s):
        for b, rate in enumerate(row):
            if a != b and not rate > 0:
                given = units.byte_rate(rate)
                raise ValueError(f"the link from host {a} to host {b} has {given}; give a positive rate")
    for a, row in enumerate(bytes_per_s):
        for b, rate in enumerate(row):
            if a == b:
                continue
            namespace, device = net.namespace(a), net.device(b)
            ran("ip", "-n", namespace, "link", "set", device, "gso_max_size", str(_PACKET_BYTES))
            ran(
                "tc", "-n", namespace, "qdisc", "replace", "dev", device, "root",
                "tbf", "rate", f"{round(8 * rate)}bit", "burst", _BURST, "limit", _LIMIT,
            )  # fmt: skip
