"""Seconds as they come out where costs are drawn at random by how far off predictions may be."""

from __future__ import annotations

import dataclasses
from typing import Annotated, final

from alpa_dejavu._util.dataclass_format import Needed, Stored
from alpa_dejavu._util.format_fields import Seconds, listed
from alpa_dejavu.problem import checks


@final
@dataclasses.dataclass(frozen=True)
class _LayerSeconds:
    """The drawn seconds of a layer in files of plans."""

    mean_s: Seconds
    deviation_s: Seconds


_WITHOUT_LAYERS = Stored(
    tuple[_LayerSeconds, ...],
    lambda layers: tuple(_LayerSeconds(layer.mean_s, layer.deviation_s) for layer in layers),
    lambda layers: tuple(DrawnSeconds(layer.mean_s, layer.deviation_s) for layer in layers),
)


@final
@dataclasses.dataclass(frozen=True)
class DrawnSeconds:
    """The mean and the standard deviation of predicted seconds over joint random draws of costs.

    Attributes:
        mean_s, deviation_s: mean and standard deviation over the draws, in seconds.
        layers: the same for each layer of a stage, in their order; in every draw the layers' seconds add up to the
            stage's, so their means do, too. Empty: not told.

    Raises ValueError for seconds that are negative or aren't finite.
    """

    mean_s: Seconds
    deviation_s: Seconds
    layers: Needed[
        Annotated[
            tuple[DrawnSeconds, ...],
            _WITHOUT_LAYERS,
            listed("a list of mean and deviation of each layer of the stage"),
        ]
    ] = ()

    def __post_init__(self) -> None:
        checks.not_negative("drawn", "mean_s", self.mean_s)
        checks.not_negative("drawn", "deviation_s", self.deviation_s)

    def times(self, factor: float) -> DrawnSeconds:
        """Returns the same with all seconds multiplied by a factor.

        >>> DrawnSeconds(1.5, 0.25).times(2.0)
        DrawnSeconds(mean_s=3.0, deviation_s=0.5, layers=())
        """
        layers = tuple(layer.times(factor) for layer in self.layers)
        return DrawnSeconds(self.mean_s * factor, self.deviation_s * factor, layers)
