"""The alpha-beta model: a latency for each round of messages, and a rate for the bytes, of the slowest link."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu.costs.communication._base import COLLECTIVES, RING_PASSES, CommunicationModel, Group


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
        link = group.cluster.slowest_link(group.hosts)
        if collective == "send":
            latency_s, rate = link.sending
            return np.where(sizes > 0, latency_s + sizes * group.concurrent / rate, 0.0)
        rounds = (group.size - 1) * RING_PASSES.get(collective, 1)
        if rounds == 0:
            return np.zeros_like(sizes)
        members = Counter(group.hosts).values()
        sharing = group.concurrent if len(members) > 1 else 1
        leaving = max(here * (group.size - here) for here in members) if len(members) > 1 else rounds
        shares = leaving if collective == "all_to_all" else rounds
        moved = shares * sizes / group.size * sharing
        return np.where(sizes > 0, rounds * link.latency_s + moved / link.rates(group.size, sizes), 0.0)
