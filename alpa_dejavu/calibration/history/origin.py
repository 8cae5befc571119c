"""The origin of a prediction: what it was about and what made it. By this, runs are alike or not."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any, final

from alpa_dejavu.costs.communication import CommunicationModel, communication_model
from alpa_dejavu.costs.latency import LatencyModel, latency_model
from alpa_dejavu.costs.runtime import ALPA, RuntimeProfile
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
    """The origin of a prediction: which model on which cluster it is about, and which cost models made it; past runs
    say something of each other where these are equal.

    Attributes:
        model: a fingerprint of the model's parameters. Alpa doesn't know a model's name, and plans differ in layers and
            micro-batches, so none of these is in it.
        cluster: a fingerprint of the cluster's hosts, devices and links.
        devices: the names of the kinds of devices; corrections never go from one to another.
        predictor: the names of the latency and the communication model, and of the runtime profile unless it is Alpa's,
            since each is wrong by other factors.
        calibration: the `identity` of the calibration that the models come from, since each makes them wrong by other
            factors; empty without one, and `UNKNOWN` for runs that were kept before it was.
    """

    model: str
    cluster: str
    devices: str
    predictor: str
    calibration: str = ""

    @property
    def kind(self) -> tuple[str, str, str]:
        """Returns the names of the devices, the cost models and the calibration of a prediction, which must be equal
        for past runs to say anything of each other.
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
        runtime: RuntimeProfile = ALPA,
    ) -> Origin:
        """Returns the origin of predictions for a model on a cluster: fingerprints of both, and the names of what makes
        the predictions.

        Without a latency or a communication model it is that of a plan that was read from a file.

        Args:
            model: the model with its layers.
            cluster: the cluster with the figures that the predictions are made with.
            latency: the latency model that predicts, or its name.
            communication: the communication model that predicts, or its name.
            calibration: the calibration that the models and the cluster's figures are from, if they are from one.
            runtime: the runtime profile that they are predicted for.

        Raises:
            ValueError: an unknown name.
        """
        predictor = GIVEN
        if latency is not None and communication is not None:
            models = latency_model(latency), communication_model(communication)
            names = [type(each).__name__ for each in models]
            predictor = " + ".join(names if runtime == ALPA else [*names, runtime.name])
        kinds = sorted({host.device.name for host in cluster.hosts})
        known = "" if calibration is None else calibration.identity
        return cls(_of_model(model), _of_cluster(cluster), " + ".join(kinds), predictor, known)


def plan_key(plan: Plan) -> str:
    """Returns a key (a hash) that is equal for plans that run alike on the same hosts, whatever seconds are predicted
    for them.
    """
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
