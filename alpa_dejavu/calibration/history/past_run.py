"""A past run of a plan as it is kept, and the origin of its prediction, by which runs are alike or not."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
import time
from collections.abc import Mapping
from typing import Annotated, Any, final

from alpa_dejavu._util.dataclass_format import Inline, Key, Needed, Stored
from alpa_dejavu._util.extras import installed_version
from alpa_dejavu._util.format_fields import Seconds, SecondsAboveZero, Text, Words, listed, stated
from alpa_dejavu.calibration._calibration import Calibration
from alpa_dejavu.costs.communication import CommunicationModel, communication_model
from alpa_dejavu.costs.latency import LatencyModel, latency_model
from alpa_dejavu.costs.runtime import ALPA, RuntimeProfile
from alpa_dejavu.plans.plan_file import consistent_plan, plan_data
from alpa_dejavu.problem import Cluster, Model, Plan, checks

GIVEN = "a plan file"
"""The predictor of a plan that was read: its figures may be another machine's, so nothing is corrected by its runs."""
UNKNOWN = "unknown"
"""The calibration of runs from before it was kept: nothing is corrected by them, since there may have been any."""


@final
@dataclasses.dataclass(frozen=True)
class Origin:
    """The origin of a prediction: model, cluster and cost models; past runs with equal ones say something of it."""

    # A fingerprint of the model's parameters. Alpa doesn't know a model's name, and plans differ in layers and
    # micro-batches, so none of these is in it.
    model: Annotated[Words, Key("model_fingerprint")]
    cluster: Annotated[Words, Key("cluster_fingerprint")]  # a fingerprint of the cluster's hosts, devices and links
    devices: Words  # the names of the kinds of devices; corrections never go from one to another
    predictor: Words  # the names of the cost models, and of the runtime profile unless it is Alpa's
    # The `identity` of the calibration that the models come from, since each makes them wrong by other factors; empty
    # without one, and `UNKNOWN` for runs that were kept before it was.
    calibration: Needed[Words] = ""

    @property
    def kind(self) -> tuple[str, str, str]:
        """Returns what must be equal for runs to say anything of each other: devices, cost models, calibration."""
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
        """Returns the origin of predictions; without cost models, of a file's plan. ValueError for an unknown name."""
        predictor = GIVEN
        if latency is not None and communication is not None:
            models = latency_model(latency), communication_model(communication)
            names = [type(model_chosen).__name__ for model_chosen in models]
            predictor = " + ".join(names if runtime == ALPA else [*names, runtime.name])
        kinds = sorted({host.device.name for host in cluster.hosts})
        identity = "" if calibration is None else calibration.identity
        sizes = sorted(float(tensor.num_bytes) for tensor in model.tensors if tensor.role == "parameter")
        hosts = [(host.device.name, host.num_devices) for host in cluster.hosts]
        figures = [dataclasses.astuple(link) for link in cluster.link_kinds.links]
        links = [[figures[n] for n in row] for row in cluster.link_kinds.numbers.tolist()]
        fingerprints = _digest([model.training, sizes]), _digest([hosts, links, cluster.cores])
        return cls(*fingerprints, " + ".join(kinds), predictor, identity)


def plan_key(plan: Plan) -> str:
    """Returns a hash that is equal for plans that run alike on the same hosts, whatever is predicted for them."""
    stages = [
        (
            s.layers, (s.submesh.num_hosts, s.submesh.devices_per_host), s.logical_mesh, s.hosts, s.remat, s.zero,
            dict(s.options),
        )
        for s in plan.stages
    ]  # fmt: skip
    return _digest([stages, plan.num_micro_batches, plan.schedule, plan.batch])


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


MOST_STEPS = 1000
"""So many steps of a run are kept, the last ones."""


@final
@dataclasses.dataclass(frozen=True)
class StageSeconds:
    """The measured seconds of a stage in a run."""

    # forward_s, backward_s: the seconds that the stage is busy with the forward and with the backward pass of a micro-
    # batch, starting, sending and receiving included
    forward_s: Seconds
    backward_s: Seconds
    per_step_s: Seconds  # the seconds of what comes once a step
    # computing_s, predicted_computing_s: the seconds of the computation and its collectives, forward and backward
    # together, without starting, sending and receiving; and those that were predicted for it
    computing_s: Seconds
    predicted_computing_s: Seconds

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            checks.not_negative("measured stage", field.name, getattr(self, field.name))


_LAST_S = 253_402_300_799
"""The end of the year 9999: calendars know no later one."""
_AS_DATA = Stored(dict[str, Any], lambda plan: plan_data(dataclasses.replace(plan, contingencies={})), consistent_plan)


def _versions() -> Mapping[str, str]:
    return {name: installed_version(name) or "unknown" for name in ("alpa-dejavu", "jax")}


@final
@dataclasses.dataclass(frozen=True)
class PastRun:
    """A past run: the seconds predicted without correction, those measured of each step, and of stages, if any.

    A file keeps the plan without contingencies. `when_s` is in seconds since 1970, UTC; `versions` are of packages.
    ValueError for seconds that aren't positive, no steps, or another number of stages than the plan's.
    """

    plan: Annotated[Plan, _AS_DATA]
    origin: Inline[Origin]
    predicted_s: SecondsAboveZero
    steps_s: Annotated[tuple[SecondsAboveZero, ...], listed("a list of the seconds of at least one step", min_length=1)]
    stages: Needed[
        Annotated[tuple[StageSeconds, ...], listed("a list of the seconds of each stage, or an empty one")]
    ] = ()
    when_s: Needed[Annotated[float, stated("seconds since 1970, before the year 10000", ge=0, le=_LAST_S)]] = (
        dataclasses.field(default_factory=time.time)
    )
    versions: Needed[Annotated[Mapping[str, Text], stated("an object of the versions of packages")]] = (
        dataclasses.field(default_factory=_versions, hash=False)
    )

    def __post_init__(self) -> None:
        checks.positive("run", "predicted_s", self.predicted_s)
        if not self.steps_s:
            raise ValueError("run: no step was measured; run more steps than it takes to warm up")
        for step_s in self.steps_s:
            checks.positive("run", "steps_s", step_s)
        if self.stages and len(self.stages) != len(self.plan.stages):
            raise ValueError(f"run: {len(self.stages)} stages were measured, but the plan has {len(self.plan.stages)}")
        object.__setattr__(self, "steps_s", tuple(map(float, self.steps_s[-MOST_STEPS:])))

    @property
    def measured_s(self) -> float:
        """Returns the median seconds of the run's measured steps."""
        return statistics.median(self.steps_s)

    @property
    def ratio(self) -> float:
        """Returns the run's measured seconds of a step over the predicted ones."""
        return self.measured_s / self.predicted_s
