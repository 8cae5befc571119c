"""By which models costs are predicted: of operators' latency and of communication."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.costs.communication import CommunicationModel, communication_model
from alpa_dejavu.costs.latency import LatencyModel, latency_model

__all__ = ["CostModels"]


@final
@dataclasses.dataclass(frozen=True)
class CostModels:
    """A pair of a latency model of operators and a communication model of collectives, which always go together.

    Attributes:
        latency: of operators on a device.
        communication: of collectives among devices and sends between them.
    """

    latency: LatencyModel
    communication: CommunicationModel

    @classmethod
    def named(
        cls, latency: str | LatencyModel = "analytic", communication: str | CommunicationModel = "alpha-beta"
    ) -> CostModels:
        """Returns the latency and communication models of these names, or the given ones.

        Raises:
            ValueError: a name is unknown.
            TypeError: something is neither a name nor a model.
        """
        return cls(latency_model(latency), communication_model(communication))

    @property
    def names(self) -> tuple[str, str]:
        """Returns the names of the latency and communication models' classes, by which files say what they were made
        with.
        """
        return type(self.latency).__name__, type(self.communication).__name__
