"""Seconds of stages that are no part of a training step, such as inference's, in joint draws of prediction errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.costs.stage_costs import StageCostModel
from alpa_dejavu.costs.stage_devices import StageDevices
from alpa_dejavu.planning.search.uncertainty._errors import Errors, entry_seconds
from alpa_dejavu.planning.search.uncertainty._resolved import Resolved, Resolver
from alpa_dejavu.planning.search.uncertainty._spreads import COMPUTE, link_class
from alpa_dejavu.problem import MeshConfig

__all__ = ["StageDraws", "interval"]

_DRAWS = 200
_ENDS = (0.05, 0.95)


@final
class StageDraws:
    """Joint draws of the seconds of several models' stages on the same devices: what is alike in them errs alike.

    Args:
        priced: for each model its costs, and the devices and mesh that a stage of any of its layers has.
    """

    def __init__(self, priced: Sequence[tuple[StageCostModel, StageDevices, MeshConfig]]) -> None:
        resolver = Resolver()
        self._resolved = [resolver.resolved(*each) for each in priced]
        errors = Errors.unmeasured(resolver)
        self._drawn, self._middle = errors.drawn(_DRAWS), errors.middle
        self.source = resolver.source

    def of_layer(self, number: int, layer: int) -> FloatArray:
        """Returns the factors from predicted to actual seconds of a pass of a model's layer in each of K draws, (K,).

        Args:
            number: the index of the model.
            layer: the layer, which is a stage of its own.
        """
        resolved: Resolved = self._resolved[number]
        drawn, middle = (
            entry_seconds(resolved.micro_batch, resolved, layer, layer, each) for each in (self._drawn, self._middle)
        )
        return np.asarray(drawn / np.where(middle > 0, middle, 1.0))

    def of_memory(self) -> FloatArray:
        """Returns the factors on seconds of reading memory, as of all that is no product, in each of K draws, (K,)."""
        return np.asarray(self._drawn.common[:, COMPUTE[1]])

    def of_sends(self, hosts: tuple[int, int]) -> FloatArray:
        """Returns the factors on sends from one host to another, or within one, in each of K draws, shape (K,)."""
        return np.asarray(self._drawn.common[:, link_class("send", hosts)])


def interval(drawn_s: FloatArray) -> tuple[float, float]:
    """Returns the 90 % interval of seconds, from draws of them, shape (K,)."""
    low, high = np.quantile(drawn_s, _ENDS)
    return float(low), float(high)
