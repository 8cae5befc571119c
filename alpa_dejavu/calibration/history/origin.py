"""The origin of a prediction: what it was about and what made it. By this, runs are alike or not."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any, final

from alpa_dejavu.costs.communication import CommunicationModel, communication_model
from alpa_dejavu.costs.latency import LatencyModel, latency_model
from alpa_dejavu.problem import Cluster, Model, Plan

if TYPE_CHECKING:
    from alpa_dejavu.calibration import Calibration

GIVEN = "a plan file"
"""The predictor of a plan that was read: its figures may be another machine's, so nothing is corrected by its runs."""
UNKNOWN = "unknown"
"""The calibration of runs from before it was kept: nothing is corrected by them, since there may have been any."""


@final
@dataclasses.dataclass(frozen=True)
class Origin:
    """The origin of a prediction, as names of what it is about and what made it: runs learn from each other where they
    are equal.

    Attributes:
        model: a fingerprint of its parameters. Alpa doesn't know a model's name, and a plan's layers and micro-batches
            are what plans differ in, so neither is in it.
        cluster: a fingerprint of its hosts, devices and links.
        devices: the kinds of devices; corrections never go from one to another.
        predictor: the latency and the communication model; what one is wrong by, another is not.
        calibration: its `identity`, since models of a kind are wrong by other figures with each; empty without one,
            and `UNKNOWN` for runs that were kept before it was.
    """

    model: str
    cluster: str
    devices: str
    predictor: str
    calibration: str = ""

    @property
    def kind(self) -> tuple[str, str, str]:
        """Returns the names of devices, predictor and calibration, which must be equal for runs to say anything of each
        other.
        """
        return self.devices, self.predictor, self.calibration

    @classmethod
    def of(
        cls,
        model: Model,
        cluster: Cluster,
        latency: str | LatencyModel | None = None,
        communication: str | CommunicationModel | None = None,
        calibration: Calibration | None = None,
    ) -> Origin:
        """Returns the origin of predictions for a model on a cluster.

        Without latency or communication it is that of a plan that was read.

        Args:
            model: the layers.
            cluster: as it was priced.
            latency: the model that predicts, or its name.
            communication: likewise.
            calibration: that the models and the cluster's figures are from, if they are from one.

        Raises:
            ValueError: an unknown name.
        """
        predictor = GIVEN
        if latency is not None and communication is not None:
            models = latency_model(latency), communication_model(communication)
            predictor = " + ".join(type(each).__name__ for each in models)
        kinds = sorted({host.device.name for host in cluster.hosts})
        known = "" if calibration is None else calibration.identity
        return cls(_of_model(model), _of_cluster(cluster), " + ".join(kinds), predictor, known)


def plan_key(plan: Plan) -> str:
    """Returns a key that is equal for plans that run alike, on the same hosts, whatever they are predicted to take."""
    stages = [
        (
            s.layers, (s.submesh.num_hosts, s.submesh.devices_per_host), s.logical_mesh, s.hosts, s.remat, s.zero,
            dict(s.options),
        )
        for s in plan.stages
    ]  # fmt: skip
    return _digest([stages, plan.num_micro_batches, plan.schedule, plan.batch])


def _of_model(model: Model) -> str:
    sizes = sorted(float(tensor.num_bytes) for tensor in model.tensors if tensor.role == "parameter")
    return _digest([model.training, sizes])


def _of_cluster(cluster: Cluster) -> str:
    hosts = [(host.device.name, host.num_devices) for host in cluster.hosts]
    links = [[dataclasses.astuple(link) for link in row] for row in cluster.links]
    return _digest([hosts, links, cluster.cores])


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
