"""Published steps, estimated as `alpa_dejavu.planning.estimate` does it for anybody."""

from __future__ import annotations

import dataclasses
import itertools
from typing import final

import numpy as np

from alpa_dejavu.costs.communication import CommunicationModel, Nccl
from alpa_dejavu.costs.latency import LatencyModel
from alpa_dejavu.costs.runtime import RuntimeProfile
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.planning.search.models.named_model import SizedTransformer
from alpa_dejavu.problem import MeshConfig, Plan, Submesh
from published._jobs import Job
from published._step_figures import latency_of, left_out_of, profile_of

__all__ = ["Estimated", "by_default", "by_sheets", "estimated"]

Models = tuple[str | LatencyModel, str | CommunicationModel]
_SHEETS: Models = ("analytic", "alpha-beta")


@final
@dataclasses.dataclass(frozen=True)
class Estimated:
    """A prediction of a job: its step's seconds with their 90 % interval, the fullest device's bytes."""

    step_s: float
    lower_s: float
    upper_s: float
    peak_bytes: float
    fits: bool


def by_default(job: Job) -> Estimated:
    """Estimates a job as anybody's; one of a source that figures were fitted to, by those without it."""
    values = left_out_of(job.source)
    if values is None:
        return estimated(job)
    return estimated(job, (latency_of(values), Nccl()), profile_of(job.runtime, values))


def by_sheets(job: Job) -> Estimated:
    """Estimates a job by data sheets alone, under the same runtime."""
    values = left_out_of(job.source)
    return estimated(job, _SHEETS, job.runtime if values is None else profile_of(job.runtime, values))


def estimated(job: Job, models: Models = ("auto", "auto"), runtime: RuntimeProfile | None = None) -> Estimated:
    """Estimates a job; where blocks are computed again in part, the middle of what all and none of them take."""
    plans = [_plan(job, config, models, runtime or job.runtime) for config in job.configs]
    steps = [(plan.step_s, *plan.confidence.interval_s) for plan in plans if plan.confidence is not None]
    step_s, lower_s, upper_s = np.mean(steps, axis=0).tolist()
    peaks = [max(stage.memory_bytes for stage in plan.stages) for plan in plans]
    room = min(stage.memory_limit_bytes for plan in plans for stage in plan.stages)
    return Estimated(step_s, lower_s, upper_s, float(np.mean(peaks)), min(peaks) <= room)


def _plan(job: Job, config: MeshConfig, models: Models, runtime: RuntimeProfile) -> Plan:
    replicas = config.replicas
    micro_batch = max(round(job.batch / replicas / job.run.num_micro_batches), 1) * replicas
    source = SizedTransformer(job.size, job.execution, micro_batch)
    model = source.exact(job.size.num_layers, micro_batch)
    return estimate(
        model, job.cluster, job.run, _stages(job, config), name=source.name, batch=job.batch, latency=models[0],
        communication=models[1], runtime=runtime,
    ).plan  # fmt: skip


def _stages(job: Job, config: MeshConfig) -> list[GivenStage]:
    """Blocks in equal parts; embeddings are with the first, the head is with the last."""
    count = job.pipeline * job.run.form.chunks
    bounds = [round(n * job.size.num_blocks / count) for n in range(count + 1)]
    ends = [0, *(1 + bound for bound in bounds[1:-1]), job.size.num_layers]
    devices, host = job.cluster.num_devices // job.pipeline, job.cluster.hosts[0].num_devices
    submesh = Submesh(max(devices // host, 1), min(devices, host))
    return [GivenStage(first, last - 1, submesh, config) for first, last in itertools.pairwise(ends)]
