"""By which models costs are predicted: of operators' latency, of communication, and of what a runtime adds."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.costs.communication import CommunicationModel, communication_model
from alpa_dejavu.costs.latency import LatencyModel, latency_model
from alpa_dejavu.costs.runtime import ALPA, RuntimeProfile, runtime_profile

__all__ = ["CostModels"]


@final
@dataclasses.dataclass(frozen=True)
class CostModels:
    """A latency model of operators, a communication model of collectives and a runtime profile, which go together.

    Attributes:
        latency: the model that predicts the seconds of operators on a device.
        communication: the model that predicts the seconds of collectives among devices and of sends between them.
        runtime: what the training framework adds to both, and what it does at the same time.
    """

    latency: LatencyModel
    communication: CommunicationModel
    runtime: RuntimeProfile = ALPA

    @classmethod
    def named(
        cls,
        latency: str | LatencyModel = "analytic",
        communication: str | CommunicationModel = "alpha-beta",
        runtime: str | RuntimeProfile = ALPA,
    ) -> CostModels:
        """Returns the latency model, the communication model and the runtime profile of these names; a model in place
        of a name is taken as it is.

        Raises:
            ValueError: a name is unknown.
            TypeError: something is neither a name nor a model.
        """
        return cls(latency_model(latency), communication_model(communication), runtime_profile(runtime))

    @property
    def names(self) -> tuple[str, str]:
        """Returns the class names of the latency model and of the communication model, by which files record which
        models their predictions come from.
        """
        return type(self.latency).__name__, type(self.communication).__name__
