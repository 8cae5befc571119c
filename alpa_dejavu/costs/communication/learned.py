"""Learned communication: models fitted to measured collectives. It needs SciPy; the planner's defaults don't."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu.costs.communication._alpha_beta import (
    COLLECTIVES,
    MEASURED,
    AlphaBeta,
    CommunicationModel,
    Group,
    MeasuredAlphaBeta,
)
from alpa_dejavu.costs.communication._collectives import (
    FILLED_IN,
    Array,
    Collectives,
    PredictedSeconds,
    Suspect,
    interval_ends,
    summary,
    suspects,
)  # fmt: skip
from alpa_dejavu.costs.communication._fitted import FittedCollectives
from alpa_dejavu.costs.communication._links import Links

__all__ = [
    "FILLED_IN", "Collectives", "FittedCollectives", "LearnedCommunication", "PredictedSeconds", "Suspect",
    "interval_ends", "summary", "suspects",
]  # fmt: skip


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LearnedCommunication(CommunicationModel):
    """A communication model that predicts collectives by fitted measurements, and sends by an alpha-beta model.

    Latencies, and the share of a link's rate that a library reaches, are fitted; the link's rate is the cluster's.

    Attributes:
        within: the model fitted to groups of devices inside one host.
        across: the model fitted to groups that span hosts; None: the alpha-beta model predicts these.
        rest: the alpha-beta model, on the slowest link or on the links of the group.
    """

    within: FittedCollectives
    across: FittedCollectives | None = None
    rest: AlphaBeta | MeasuredAlphaBeta | Links = dataclasses.field(default_factory=AlphaBeta)

    def seconds(self, collective: str, num_bytes: ArrayLike, group: Group) -> NDArray[np.float64]:
        """Returns the seconds of one collective of a group for each size in bytes, in the shape of `num_bytes`."""
        if collective not in COLLECTIVES:
            raise ValueError(f"there is no collective {collective!r}; choose one of {', '.join(COLLECTIVES)}")
        sizes = np.asarray(num_bytes, dtype=np.float64)
        different, places = np.unique(sizes, return_inverse=True)
        predicted = self._predicted(collective, different, group)
        if predicted is None:
            return self.rest.seconds(collective, sizes, group)
        return np.where(sizes > 0, predicted.mean[places].reshape(sizes.shape), 0.0)

    def interval(self, collective: str, num_bytes: ArrayLike, group: Group) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Returns the lower and the upper ends of 90 % intervals of a collective's seconds, and whether the model was
        fitted to such groups; all three have the shape of `num_bytes`.
        """
        sizes = np.asarray(num_bytes, dtype=np.float64)
        predicted = self._predicted(collective, sizes, group)
        if predicted is None and isinstance(self.rest, MeasuredAlphaBeta):
            lower, upper, measured = self.rest.interval(collective, sizes, group)
            if measured.all():
                return lower, upper, measured
        if predicted is None:
            seconds = self.seconds(collective, sizes, group)
            return seconds / 2, seconds * 2, np.zeros(sizes.shape, dtype=np.bool_)
        lower, upper = (
            np.where(sizes > 0, end.reshape(sizes.shape), 0.0) for end in (predicted.lower, predicted.upper)
        )
        return lower, upper, predicted.in_domain.reshape(sizes.shape)

    def _predicted(self, collective: str, sizes: Array, group: Group) -> PredictedSeconds | None:
        hosts = len(group.members)
        fitted = self.within if hosts == 1 else self.across
        if fitted is None or collective not in MEASURED or group.size == 1:
            return None
        link = group.slowest_link
        # One device holds so much of an all-to-all; the fit counts what all hold together.
        whole = sizes * (group.size if collective == "all_to_all" else 1)
        flat = np.maximum(whole.ravel(), 1.0)

        def column(value: float) -> Array:
            return np.full(flat.size, value)

        rows = Collectives(
            name=np.full(flat.size, collective),
            num_bytes=flat,
            size=column(group.size),
            hosts=column(hosts),
            sharing=column(group.concurrent if hosts > 1 else 1),
            lanes=column(link.group_bytes_per_s(group.size)),
        )
        return fitted.predict(rows)
