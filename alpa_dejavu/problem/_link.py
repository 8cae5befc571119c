"""A way from one device to another, and a host without accelerators that adds up what comes over it."""

from __future__ import annotations

import dataclasses
from typing import Annotated, final

import numpy as np

from alpa_dejavu._util.dataclass_format import Rare
from alpa_dejavu._util.format_fields import GivenNotNegative, GivenPositive, Text, listed
from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.problem import checks


@final
@dataclasses.dataclass(frozen=True)
class Link:
    """A link between two devices: the alpha (latency) and 1/beta (rate) of the alpha-beta model.

    Attributes:
        latency_s, bytes_per_s: latency and rate of one message in a collective among the devices of one stage.
        send_latency_s, send_bytes_per_s: latency and rate of a tensor that goes from one stage to the next, which may
            take another way (on a CPU cluster, through the runtime's transport instead of shared memory); None: those
            of a message between two devices in a collective.
        pair_bytes_per_s: the rate between two devices, where `bytes_per_s` is the rate of a device to all others
            together, as with NVLinks from device to device; None: two devices can use all of it, as through a switch.
        shares: names of the media that it goes over together with other links, such as a host's network card or a
            switch. All that goes at a time over links with such a name shares the medium's rate (`Cluster.media`).
            Empty: the link is shared only by groups of devices that communicate at the same time.
        device_bytes_per_s: the rate of one device's own network card, of a link between hosts, whose `bytes_per_s` is
            that of a whole host; None: one device may use all of the link.
        cached_bytes_per_s, cached_bytes: the rate of a message in a collective that has fewer than so many bytes, where
            a CPU's cache holds it and `bytes_per_s` is that of messages from memory; None: all have the same rate.
    """

    latency_s: GivenNotNegative
    bytes_per_s: GivenPositive
    send_latency_s: Rare[GivenNotNegative | None] = None
    send_bytes_per_s: Rare[GivenPositive | None] = None
    pair_bytes_per_s: Rare[GivenPositive | None] = None
    shares: Rare[Annotated[tuple[Text, ...], listed("a list of the names of what the link shares")]] = ()
    device_bytes_per_s: Rare[GivenPositive | None] = None
    cached_bytes_per_s: Rare[GivenPositive | None] = None
    cached_bytes: Rare[GivenPositive | None] = None

    def __post_init__(self) -> None:
        named = (self.shares,) if isinstance(self.shares, str) else tuple(self.shares)
        object.__setattr__(self, "shares", named)
        if not all(named) or len(set(named)) < len(named):
            raise ValueError(f"link: shares is {named}, but must be different names; leave out what it doesn't share")
        checks.not_negative("link", "latency_s", self.latency_s)
        checks.positive("link", "bytes_per_s", self.bytes_per_s)
        checks.not_negative("link", "send_latency_s", self.sending[0])
        checks.positive("link", "send_bytes_per_s", self.sending[1])
        checks.positive("link", "pair_bytes_per_s", self.group_bytes_per_s(2))
        if (self.cached_bytes_per_s is None) != (self.cached_bytes is None):
            raise ValueError("link: cached_bytes_per_s and cached_bytes belong together; give both or neither")
        checks.fields("link", self, "device_bytes_per_s cached_bytes_per_s cached_bytes")

    def group_bytes_per_s(self, size: int) -> float:
        """Returns the bytes per second that each device has in a collective among `size` devices, by its links to the
        other ones.

        >>> [Link(0.0, 150.0, pair_bytes_per_s=25.0).group_bytes_per_s(size) for size in (2, 4, 8)]
        [25.0, 75.0, 150.0]
        """
        if self.pair_bytes_per_s is None:
            return self.bytes_per_s
        return min(self.bytes_per_s, max(size - 1, 1) * self.pair_bytes_per_s)

    def carrying(self, factor: float) -> Link:
        """Returns the link that carries `factor` times the bytes per second; latencies stay as they are."""
        names = ("bytes_per_s", "send_bytes_per_s", "pair_bytes_per_s", "device_bytes_per_s", "cached_bytes_per_s")
        rates = {name: getattr(self, name) for name in names}
        return dataclasses.replace(self, **{name: rate * factor for name, rate in rates.items() if rate is not None})

    def devices_bytes_per_s(self, devices: int) -> float:
        """Returns the bytes per second that so many devices of a host have together, by their own cards.

        >>> [Link(0.0, 400.0, device_bytes_per_s=50.0).devices_bytes_per_s(devices) for devices in (1, 4, 16)]
        [50.0, 200.0, 400.0]
        """
        return self._by_cards(self.bytes_per_s, devices)

    def sending_from(self, devices: int, groups: int = 1) -> tuple[float, float]:
        """Returns the latency in seconds, and the bytes per second that some groups, which each send from so many
        devices of a host at a time, have together.
        """
        latency_s, rate = self.sending
        return latency_s, self._by_cards(rate, groups * devices)

    def _by_cards(self, rate: float, cards: int) -> float:
        return rate if self.device_bytes_per_s is None else min(rate, cards * self.device_bytes_per_s)

    def rates(self, size: int, num_bytes: FloatArray) -> FloatArray:
        """Returns the bytes per second that each of `size` devices has in a collective for messages of `num_bytes`."""
        rate = np.full(num_bytes.shape, self.group_bytes_per_s(size))
        if self.cached_bytes is not None:
            rate[num_bytes < self.cached_bytes] = self.cached_bytes_per_s
        return rate

    @property
    def sending(self) -> tuple[float, float]:
        """Returns the latency in seconds and the bytes per second for a tensor sent from one stage to the next."""
        latency = self.latency_s if self.send_latency_s is None else self.send_latency_s
        return latency, self.group_bytes_per_s(2) if self.send_bytes_per_s is None else self.send_bytes_per_s


@final
@dataclasses.dataclass(frozen=True)
class ReductionServer:
    """A host without accelerators that adds up gradients for the hosts that have some; its rate is that at which it
    receives, and at the same time sends, to all hosts together.
    """

    name: Text
    bytes_per_s: GivenPositive

    def __post_init__(self) -> None:
        checks.positive(f"reduction server {self.name}", "bytes_per_s", self.bytes_per_s)
