"""The interface of communication models, and the alpha-beta model: a latency for each round of messages, and a rate for
the bytes, of the slowest link.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu.problem import Cluster, Link

RING_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""The collectives that go around a ring, and how often: a pass of n devices is n-1 rounds of 1/n of the bytes each."""
COLLECTIVES = (*RING_PASSES, "all_to_all", "send")
"""The collectives that can be asked for. "send" goes from the first device of a group to the last, or from
each of some devices of a host at once to those of another, where the group has several of both."""
MEASURED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""The collectives that calibrations measure, fit and keep; the others go by links alone."""


@final
@dataclasses.dataclass(frozen=True)
class Group:
    """A group of devices that communicate: the index of each one's host in the cluster, and how many such groups run
    the same collective at the same time (`concurrent`).
    """

    cluster: Cluster
    hosts: tuple[int, ...]
    concurrent: int = 1

    def __post_init__(self) -> None:
        if not self.hosts or min(self.hosts) < 0 or max(self.hosts) >= len(self.cluster.hosts):
            raise ValueError(f"group: hosts is {self.hosts}, but must name hosts 0..{len(self.cluster.hosts) - 1}")
        if self.concurrent < 1:
            raise ValueError(f"group: concurrent is {self.concurrent}, but at least one group takes part")

    @property
    def size(self) -> int:
        """Returns how many devices take part in the group's collectives."""
        return len(self.hosts)

    @functools.cached_property
    def members(self) -> Mapping[int, int]:
        """Returns how many of the devices each host has, by the hosts' indices, in the order of the devices."""
        return Counter(self.hosts)

    @functools.cached_property
    def slowest_link(self) -> Link:
        """Returns the slowest link among the hosts of the devices; that within the host if all are in one."""
        return self.cluster.slowest_link(list(self.members))


class CommunicationModel(abc.ABC):
    """A model that predicts the seconds of collectives; `alpa_dejavu.testing.check_communication_model` says if one is
    sound.
    """

    @abc.abstractmethod
    def seconds(self, collective: str, num_bytes: ArrayLike, group: Group) -> NDArray[np.float64]:
        """Returns the predicted seconds of one collective of a group for each size in bytes, in the shape of
        `num_bytes`.

        Args:
            collective: its name, one of `COLLECTIVES`.
            num_bytes: the bytes of the whole tensor: what each device holds before an all-reduce or reduce-scatter, and
                after an all-gather; what one device holds for an all-to-all; what is sent.
            group: the devices. A group of one takes no time, except for "send", where the tensor stays on its device.
        """


@final
@dataclasses.dataclass(frozen=True)
class AlphaBeta(CommunicationModel):
    """An alpha-beta model of collectives: ring algorithms over the slowest link of a group of devices; groups that
    communicate at the same time share the links between hosts.

    With n devices, a ring all-reduce takes 2(n-1) rounds of 1/n of the bytes each; an all-gather, a reduce-scatter and
    an all-to-all take n-1 of them. A ring leaves each host once, but in an all-to-all a host's m devices send to all
    n-m others, and its link carries m(n-m) of the shares. A send is one message.

    References:
        Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH,
        IJHPCA 19(1), 2005.
    """

    def seconds(self, collective: str, num_bytes: ArrayLike, group: Group) -> NDArray[np.float64]:
        """Returns the seconds of one collective of a group for each size in bytes, in the shape of `num_bytes`."""
        if collective not in COLLECTIVES:
            raise ValueError(f"there is no collective {collective!r}; choose one of {', '.join(COLLECTIVES)}")
        sizes = np.asarray(num_bytes, dtype=np.float64)
        link = group.slowest_link
        if collective == "send":
            latency_s, rate = link.sending_from(min(group.members.values()), group.concurrent)
            return np.where(sizes > 0, latency_s + sizes * group.concurrent / rate, 0.0)
        rounds = (group.size - 1) * RING_PASSES.get(collective, 1)
        if rounds == 0:
            return np.zeros_like(sizes)
        members = group.members.values()
        sharing = group.concurrent if len(members) > 1 else 1
        leaving = max(inside * (group.size - inside) for inside in members) if len(members) > 1 else rounds
        shares = leaving if collective == "all_to_all" else rounds
        moved = shares * sizes / group.size * sharing
        return np.where(sizes > 0, rounds * link.latency_s + moved / link.rates(group.size, sizes), 0.0)


_UNMEASURED = math.log(2) / REACH_90
"""The spread of a figure that has none of its own: it is within a factor of two with 90 %."""
_NEXT_TO_NOTHING = 1e-9


@final
@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredAlphaBeta(CommunicationModel):
    """The alpha-beta model with error intervals, from the measured spread of links' latencies and rates.

    Attributes:
        spread: for each measured link, the standard deviation of the logarithm of its figures, by its field's name.
        own: that of a kind of collective beside the alpha-beta model, however well the link's figures are known.
        spread_from: where the spread comes from, in a few words.
    """

    spread: Mapping[Link, Mapping[str, float]]
    own: float
    spread_from: str

    def seconds(self, collective: str, num_bytes: ArrayLike, group: Group) -> NDArray[np.float64]:
        """Returns the seconds of one collective of a group for each size in bytes, in the shape of `num_bytes`."""
        return AlphaBeta().seconds(collective, num_bytes, group)

    def interval(
        self, collective: str, num_bytes: ArrayLike, group: Group
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """Returns the lower and the upper ends of 90 % intervals of a collective's seconds for each size in bytes, and
        whether the group's slowest link was measured; if not, both ends are the seconds themselves.
        """
        seconds = self.seconds(collective, num_bytes, group)
        link = group.slowest_link
        spread = self.spread.get(link, {})
        sigma = self._sigma(collective, seconds, group, link, spread) if spread else np.zeros_like(seconds)
        factor = np.exp(REACH_90 * sigma)
        return seconds / factor, seconds * factor, np.full(seconds.shape, bool(spread))

    def _sigma(
        self, collective: str, seconds: NDArray[np.float64], group: Group, link: Link, spread: Mapping[str, float]
    ) -> NDArray[np.float64]:
        """Standard deviation of the logarithm of some seconds: by how much of them is latency, how much rate."""
        send = collective == "send"
        latency = "send_latency_s" if send and link.send_latency_s is not None else "latency_s"
        rate = "send_bytes_per_s" if send and link.send_bytes_per_s is not None else "bytes_per_s"
        start_s = np.minimum(self.seconds(collective, _NEXT_TO_NOTHING, group), seconds)
        off_s = np.hypot(
            start_s * spread.get(latency, _UNMEASURED), (seconds - start_s) * spread.get(rate, _UNMEASURED)
        )
        relative = np.divide(off_s, seconds, out=np.zeros_like(off_s), where=seconds > 0)
        return np.asarray(relative if send else np.hypot(relative, self.own))


@final
@dataclasses.dataclass(frozen=True)
class Free(CommunicationModel):
    """A communication model that predicts zero seconds for every collective: the baseline."""

    def seconds(self, collective: str, num_bytes: ArrayLike, group: Group) -> NDArray[np.float64]:
        """Returns zero seconds for each size of a collective, in the shape of `num_bytes`."""
        return np.zeros_like(np.asarray(num_bytes, dtype=np.float64))


def link_bytes(collective: str, num_bytes: float, group: Group) -> dict[tuple[int, int], float]:
    """Returns the bytes that one collective of a group (but "send") sends, by the pair of the indices of the hosts that
    send and receive; a host with itself are its devices among themselves.

    A ring goes through the devices of a host one after the other, and through the hosts in the order of their numbers.
    The models of seconds may take another order of hosts, or two levels of rings, which send about as much.

    >>> from alpa_dejavu.testing import example_cluster
    >>> link_bytes("all_reduce", 4.0, Group(example_cluster(2), (0, 0, 1, 1)))
    {(0, 0): 6.0, (0, 1): 6.0, (1, 1): 6.0, (1, 0): 6.0}
    """
    hosts, sent = sorted(group.hosts), defaultdict[tuple[int, int], float](float)
    size = len(hosts)
    if collective == "all_to_all":
        share = num_bytes / size
        for n, sender in enumerate(hosts):
            for receiver in hosts[:n] + hosts[n + 1 :]:
                sent[sender, receiver] += share
    elif size > 1:
        share = RING_PASSES[collective] * (size - 1) / size * num_bytes
        for hop in zip(hosts, [*hosts[1:], hosts[0]], strict=True):
            sent[hop] += share
    return dict(sent)
