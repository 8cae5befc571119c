"""The prices of plans: a cluster and the models of its operators and collectives."""

from __future__ import annotations

import dataclasses
import os
from typing import Literal, final

from alpa_dejavu.calibration._bundled import chosen_calibration
from alpa_dejavu.calibration._calibration import Calibration
from alpa_dejavu.calibration.default import NONE, bundled_for
from alpa_dejavu.costs.communication import CommunicationModel, communication_model, communication_name
from alpa_dejavu.costs.cost_models import CostModels
from alpa_dejavu.costs.latency import LatencyModel, latency_model, latency_name
from alpa_dejavu.costs.memory_margin import MemoryResiduals
from alpa_dejavu.costs.runtime import ALPA, RuntimeProfile, runtime_profile
from alpa_dejavu.problem import Cluster, PricedBy

_AUTO = "auto"
"""The default: a calibration's models, or without one the roofline and alpha-beta. It has a name of its own, so that
whoever asks for one of these beside a calibration is told."""
_OPEN = (_AUTO, "links")
"""The choices of models that a calibration is taken beside: "links" goes by the links that the calibration brings."""


@final
@dataclasses.dataclass(frozen=True)
class Prices:
    """A cluster and the cost models by which plans on it are priced, and the calibration of both, if there is one."""

    cluster: Cluster
    models: CostModels
    calibration: Calibration | None = None

    def residuals(self, given: MemoryResiduals | None) -> MemoryResiduals | None:
        """Returns the measured residuals of memory that a plan's margin follows from: those given, else the
        calibration's.
        """
        return given if given is not None or self.calibration is None else self.calibration.memory

    def named(self, asked: PricedBy | None = None) -> PricedBy:
        """Returns the record of how a plan was priced: the names of its cost models and calibration, added to the
        options that were asked for (`asked`).
        """
        return dataclasses.replace(
            asked or PricedBy(),
            latency=latency_name(self.models.latency),
            communication=communication_name(self.models.communication),
            calibration="" if self.calibration is None else self.calibration.name,
            runtime=self.models.runtime.name,
        )


def check_choice(
    calibration: str | os.PathLike[str] | Calibration | None,
    latency: str | LatencyModel,
    communication: str | CommunicationModel,
) -> Calibration | Literal["none"] | None:
    """Checks that a calibration (models and figures fitted to measured hardware) can be read, and that no other cost
    models are given with it; returns it, or "none" or None where that is given.

    Raises:
        ValueError: the calibration can't be had, a model's name is unknown, or a model is given beside a calibration.
        TypeError: an argument is of a wrong type.
    """
    latency_model(latency)
    communication_model(communication)
    if calibration is None:
        return None
    if calibration == NONE:
        return "none"
    given = {"latency": latency, "communication": communication}
    own = [name for name, choice in given.items() if choice not in _OPEN]
    if own:
        raise ValueError(
            f"both a calibration and {own[0]}={given[own[0]]!r} are given, but a calibration brings its own models; "
            f"leave {own[0]} out, or give the models of `Calibration.latency()` and `.communication()` yourself"
        )
    return chosen_calibration(calibration)


def prices(
    cluster: Cluster,
    calibration: str | os.PathLike[str] | Calibration | None,
    latency: str | LatencyModel,
    communication: str | CommunicationModel,
    runtime: str | RuntimeProfile = ALPA,
) -> Prices:
    """Returns the cluster and the cost models that plans are priced by: a calibration's or, without one, those given.

    Args:
        cluster: the cluster with the figures of its data sheets.
        calibration: a bundled name, a file's path, or a `Calibration`; "none": data sheets; None: the bundled one that
            knows the cluster's devices, if there is one and no other models are given, else data sheets.
        latency: a latency model or its name; "auto": the calibration's, or the roofline.
        communication: a communication model or its name; "auto": the calibration's, or alpha-beta.
        runtime: a runtime profile or its name.

    Raises:
        ValueError: the calibration can't be had or is of other devices than the cluster's, a model's name is unknown,
            or a model is given beside a calibration.
        TypeError: an argument is of a wrong type.
    """
    known = check_choice(calibration, latency, communication)
    if known is None and latency in _OPEN and communication in _OPEN:
        known = bundled_for(cluster)
    if known is None or known == "none":
        return Prices(cluster, CostModels.named(latency, communication, runtime))
    by_links = communication == "links"
    model = communication_model(communication) if by_links else known.communication()
    return Prices(known.applied_to(cluster), CostModels(known.latency(), model, runtime_profile(runtime)), known)
