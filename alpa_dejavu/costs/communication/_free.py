"""Communication that costs nothing: what Alpa's search assumes between stages."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu.costs.communication._base import CommunicationModel, Group


@final
@dataclasses.dataclass(frozen=True)
class Free(CommunicationModel):
    """A communication model that predicts zero seconds for every collective: the baseline."""

    def seconds(self, collective: str, num_bytes: ArrayLike, group: Group) -> NDArray[np.float64]:
        """Returns zero seconds for each size of a collective, in the shape of `num_bytes`."""
        return np.zeros_like(np.asarray(num_bytes, dtype=np.float64))
