"""The jobs whose plans are measured, and the plans of each."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, final

import numpy as np

from _measured_models import convolutions, language_model, mixer, perceptron
from alpa_dejavu import layers, sharding
from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.planning import GivenStage, estimate, given_stages
from alpa_dejavu.problem import Cluster, MeshConfig, Plan, Run, Submesh

Drawn = TypeVar("Drawn")
REMAT, ZERO = ("none",), (0, 2)
"""One kind of what takes longer to save memory is measured, since there is enough."""


@final
@dataclasses.dataclass(frozen=True)
class Job:
    """A job to train: a model function without its batch size, the samples of a step, the layers that it is cut into,
    and the numbers of micro-batches that a plan may have; whether all plans are measured, not some that are drawn.
    """

    name: str
    model: Any
    batch: int
    layers: int
    counts: tuple[int, ...] = (2, 4, 8)
    complete: bool = False


_PYRAMID = (1024, 1024, 512, 512, 256, 256, 128)
_HOURGLASS = (1024, 512, 256, 64, 256, 512, 1024)
JOBS = {
    job.name: job
    for job in (
        Job("mlp", partial(perceptron, widths=(512,) * 9), 1024, 8, complete=True),
        Job("gpt", partial(language_model, blocks=4, hidden=128, length=64, vocabulary=256), 64, 8, complete=True),
        Job("pyramid", partial(perceptron, widths=_PYRAMID), 1024, 6, complete=True),
        Job("hourglass", partial(perceptron, widths=_HOURGLASS), 1024, 6),
        Job("mlp-wide", partial(perceptron, widths=(1024,) * 5), 512, 4),
        Job("mlp-narrow", partial(perceptron, widths=(256,) * 13), 2048, 12),
        Job("pyramid-up", partial(perceptron, widths=_PYRAMID[::-1]), 1024, 6),
        Job("gpt-head", partial(language_model, blocks=3, hidden=128, length=32, vocabulary=4096), 32, 6),
        Job("gpt-long", partial(language_model, blocks=2, hidden=64, length=256, vocabulary=256), 16, 6),
        Job("bert", partial(language_model, blocks=6, hidden=96, length=48, vocabulary=512, causal=False), 64, 6),
        Job("mixer", partial(mixer, blocks=4, patches=64, hidden=128), 64, 8),
        Job("convolutions", partial(convolutions, side=64, channels=(16, 32, 64, 96, 128)), 64, 4),
    )
}


def every_plan(job: Job, cluster: Cluster) -> list[Plan]:
    """All plans of a job: micro-batches, cuts, submeshes, splits between data and tensor parallelism, ZeRO-2 or not."""
    plans = []
    for count in job.counts:
        model = _model(job, count)
        space = search_space(cluster, job.batch // count, remat=REMAT, zero=ZERO)
        choices = {
            submesh: [config for config in row if config is not None]
            for submesh, row in zip(space.submeshes, space.configs, strict=True)
        }
        for meshes in _meshes(cluster, space.submeshes, job.layers):
            for cuts in itertools.combinations(range(1, job.layers), len(meshes) - 1):
                ranges = list(itertools.pairwise((0, *cuts, job.layers)))
                for configs in itertools.product(*(choices[submesh] for submesh in meshes)):
                    parts = zip(ranges, meshes, configs, strict=True)
                    given = [GivenStage(a, b - 1, submesh, config) for (a, b), submesh, config in parts]
                    run = Run(count)
                    plans.append(estimate(model, cluster, run, given, name=job.name, batch=job.batch).plan)
    return plans


def drawn(plans: Sequence[Drawn], count: int, seed: int) -> list[Drawn]:
    """So many of the plans, by a seed, in their order; all if there are no more."""
    if count >= len(plans):
        return list(plans)
    chosen = np.random.default_rng(seed).choice(len(plans), count, replace=False)
    return [plans[n] for n in sorted(chosen.tolist())]


def among_others(job: Job, cluster: Cluster, plan: Plan) -> Plan:
    """A plan that was made elsewhere, costed as every plan of a job is."""
    given = [dataclasses.replace(stage, hosts=None) for stage in given_stages(plan)]
    return _costed(job, cluster, plan.num_micro_batches, given)


def plan_of(job: Job, cluster: Cluster, count: int, stages: list[dict[str, Any]]) -> Plan:
    """The plan that somebody else made: `layers`, `submesh`, `logical_mesh` and `options` of each stage."""
    given = []
    for stage in stages:
        shape, submesh = tuple(stage["logical_mesh"]), Submesh(*stage["submesh"])
        forced = "force_batch_dim_to_mesh_dim" in stage["options"]
        across, along = shape if forced else (submesh.num_devices, 1)
        config = MeshConfig(shape, across, along, stage["options"])
        given.append(GivenStage(stage["layers"][0], stage["layers"][-1], submesh, config))
    return _costed(job, cluster, count, given)


def _costed(job: Job, cluster: Cluster, count: int, given: Sequence[GivenStage]) -> Plan:
    return estimate(_model(job, count), cluster, Run(count), given, name=job.name, batch=job.batch).plan


def label(plan: Plan) -> str:
    """A plan in words; the same plan has the same label."""
    stages = [
        f"{stage.layers[0]}-{stage.layers[1]} on {stage.submesh.num_hosts}x{stage.submesh.devices_per_host} as "
        + "x".join(map(str, stage.logical_mesh))
        + (f" ZeRO-{stage.zero}" if stage.zero else "")
        + ("" if "force_batch_dim_to_mesh_dim" in stage.options or stage.submesh.num_devices == 1 else " free")
        for stage in plan.stages
    ]
    return f"{plan.num_micro_batches} micro-batches: " + ", ".join(stages)


def _model(job: Job, count: int) -> Any:
    return sharding.model_of_step(layers.trace(job.model, batch=job.batch // count), job.layers)


def _meshes(cluster: Cluster, submeshes: tuple[Submesh, ...], most: int) -> Iterator[tuple[Submesh, ...]]:
    """Sequences of submeshes, one for each stage, that have all devices of one host."""
    for length in range(1, min(cluster.num_devices, most) + 1):
        for meshes in itertools.product(submeshes, repeat=length):
            if sum(submesh.num_devices for submesh in meshes) == cluster.num_devices:
                yield meshes
