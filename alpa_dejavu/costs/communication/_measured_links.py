"""The alpha-beta model on links that were measured, with how far their figures may be off."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu.costs.communication._alpha_beta import AlphaBeta
from alpa_dejavu.costs.communication._base import CommunicationModel, Group
from alpa_dejavu.problem import Link

_UNMEASURED = math.log(2) / REACH_90
"""The spread of a figure that has none of its own: it is within a factor of two with 90 %."""
_NEXT_TO_NOTHING = 1e-9


@final
@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredAlphaBeta(CommunicationModel):
    """The alpha-beta model of collectives with error intervals, from the measured spread of links' latencies and rates.

    Attributes:
        spread: for each link that was measured, the standard deviation of the logarithm of its figures, by the name of
            `Link`'s field; other links aren't in it.
        own: the standard deviation of the logarithm by which a kind of collective is off the alpha-beta model, however
            well the link's figures are known.
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
        link = group.cluster.slowest_link(group.hosts)
        known = self.spread.get(link, {})
        sigma = self._sigma(collective, seconds, group, link, known) if known else np.zeros_like(seconds)
        factor = np.exp(REACH_90 * sigma)
        return seconds / factor, seconds * factor, np.full(seconds.shape, bool(known))

    def _sigma(
        self, collective: str, seconds: NDArray[np.float64], group: Group, link: Link, known: Mapping[str, float]
    ) -> NDArray[np.float64]:
        """Standard deviation of the logarithm of some seconds: by how much of them is latency, how much rate."""
        send = collective == "send"
        latency = "send_latency_s" if send and link.send_latency_s is not None else "latency_s"
        rate = "send_bytes_per_s" if send and link.send_bytes_per_s is not None else "bytes_per_s"
        start_s = np.minimum(self.seconds(collective, _NEXT_TO_NOTHING, group), seconds)
        off_s = np.hypot(start_s * known.get(latency, _UNMEASURED), (seconds - start_s) * known.get(rate, _UNMEASURED))
        relative = np.divide(off_s, seconds, out=np.zeros_like(off_s), where=seconds > 0)
        return np.asarray(relative if send else np.hypot(relative, self.own))
