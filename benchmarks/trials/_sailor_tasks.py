"""Sailor's plans as pipelines of the planner's: replicas on nodes, layers by profiles, and what each device keeps."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from alpa_dejavu.costs.cost_models import CostModels
from alpa_dejavu.costs.latency import LayerTimes, ProfiledLayers
from alpa_dejavu.planning.strategies import Task
from alpa_dejavu.planning.strategies.stages import Pipeline, PlacedStage, config_of
from alpa_dejavu.problem import Cluster, Host, Link
from trials._folder import Folder
from trials._planned_steps import PROFILED
from trials._profiled_model import ProfiledLayer, profiled_model
from trials._sailor_links import FittedLinks
from trials._sailor_parts import BYTES, MODELS, SEQUENCE, Parts, layer_of, parts, sheet

_Replica = tuple[str, int]
"""Of a stage: its GPU and how many of them share its layers."""
_Stages = tuple[tuple[tuple[_Replica, ...], int], ...]
"""Of each stage its replicas, and the number of its layers."""
_DEGREES = (1, 2, 3, 4, 8)
"""Of tensor parallelism."""
_LOSS_COPIES, _BUCKET_BYTES = 2, 5e8 * BYTES
"""The copies of logits beside those that are kept, as where the planner has a loss that isn't fused; and the bucket in
which DeepSpeed adds up gradients by default, of 5e8 of them."""


def trials(row: Mapping[Any, Any]) -> list[tuple[str, int, int, _Stages, float]]:
    """The model, samples of a replica's micro-batch and number of micro-batches, stages, and GPUs of a node; of
    pipelines that are cut alike the replicas of all.
    """
    staged: dict[tuple[int, ...], list[list[_Replica]]] = {}
    for pipeline in json.loads(row["pipelines"]):
        cuts = tuple(len(layers) for layers in pipeline["layers_per_stage"])
        replicas = [[(str(gpus[0][0]), int(tp)) for gpus, tp in stage] for stage in pipeline["tmp_per_stage"]]
        known = staged.setdefault(cuts, [[] for _ in cuts])
        for stage, more in zip(known, replicas, strict=True):
            stage.extend(more)
    dp = sum(max(map(len, stages)) for stages in staged.values())
    devices = sum(tp for stages in staged.values() for stage in stages for _, tp in stage)
    micro_batches = max(round(float(row["global_batch"]) / float(row["micro_batch"]) / dp), 1)
    per_node = max(devices / float(row["nodes"]), 1.0)
    return [
        (
            str(row["model"]), round(row["micro_batch"]), micro_batches,
            tuple((tuple(stage), layers) for stage, layers in zip(stages, cuts, strict=True)), per_node,
        )
        for cuts, stages in staged.items()
    ]  # fmt: skip


def trial(
    folder: Folder, model: str, samples: int, micro_batches: int, staged: _Stages, per_node: float
) -> tuple[Task, Pipeline]:
    """A plan as the planner takes it, on as many nodes of each GPU as its replicas fill one after the other."""
    nodes, places = placed(staged, int(np.ceil(per_node)))
    whole, first, stages = samples * max(len(replicas) for replicas, _ in staged), 0, []
    for (replicas, count), hosts in zip(staged, places, strict=True):
        widths = tuple(tp for _, tp in replicas)
        alike = len(set(widths)) == 1
        stages.append(
            PlacedStage(first, first + count - 1, hosts, config_of(len(widths), min(widths)), () if alike else widths)
        )
        first += count
    return task_of(folder, model, nodes, whole, (samples,)), Pipeline(tuple(stages), whole, micro_batches)


def placed(staged: _Stages, per_node: int) -> tuple[tuple[_Replica, ...], list[tuple[int, ...]]]:
    """Nodes by GPU and number of them, and the node of each device of each stage; a replica isn't cut needlessly."""
    nodes, free = list[str](), dict[str, tuple[int, int]]()
    places = []
    for replicas, _ in staged:
        hosts: list[int] = []
        for gpu, tp in replicas:
            node, left = free.get(gpu, (0, 0))
            if left < min(tp, per_node):
                left = 0
            for _ in range(tp):
                if left == 0:
                    nodes.append(gpu)
                    node, left = len(nodes) - 1, per_node
                hosts.append(node)
                left -= 1
            free[gpu] = node, left
        places.append(tuple(hosts))
    return tuple((gpu, per_node) for gpu in nodes), places


@functools.cache
def task_of(folder: Folder, model: str, nodes: tuple[_Replica, ...], whole: int, samples: tuple[int, ...]) -> Task:
    """A model on nodes of GPUs, for micro-batches of `whole` samples; layers take what was profiled for replicas'
    micro-batches of these numbers of samples.
    """
    known = parts(folder)
    sent = whole * SEQUENCE * MODELS[model].hidden * BYTES
    described = []
    for n in range(MODELS[model].num_layers):
        kind = _kind(model, n)
        held, kept = (known.size(model, 1, layer_of(model, kind), f"{name}_bytes") for name in ("params", "act_mem"))
        described.append(ProfiledLayer(kind, held, sent, has_update=True, kept_bytes=whole * kept))
    latency = _latency(known, model, samples, tuple(dict.fromkeys(gpu for gpu, _ in nodes)))
    models = CostModels(latency, FittedLinks.read(folder), PROFILED)
    return Task(profiled_model(described, whole), whole, _cluster(nodes), whole, models)


def _kind(model: str, layer: int) -> str:
    return {0: "embedding", MODELS[model].num_layers - 1: "head"}.get(layer, "block")


@functools.cache
def _cluster(nodes: tuple[_Replica, ...]) -> Cluster:
    hosts = tuple(
        Host(f"node-{n}", dataclasses.replace(sheet(gpu).device(), name=gpu), count)
        for n, (gpu, count) in enumerate(nodes)
    )
    nominal = Link(0.0, 1e10)  # the fits say what links reach
    return Cluster("sailor", hosts, ((nominal,) * len(hosts),) * len(hosts))


def _latency(known: Parts, model: str, samples: tuple[int, ...], gpus: tuple[str, ...]) -> ProfiledLayers:
    counts, times = np.array(samples, dtype=np.float64), dict[str, dict[str, LayerTimes]]()
    for gpu in gpus:
        times[gpu] = {}
        for kind in ("embedding", "block", "head"):
            for phase in ("forward", "backward"):
                seconds = {
                    tp: np.array([known.pass_s(model, gpu, kind, phase, tp, each) for each in samples])
                    for tp in _DEGREES
                }
                times[gpu][f"{kind} {phase}"] = LayerTimes({tp: (counts, each) for tp, each in seconds.items()})
            updates = {tp: np.array([known.update_s(model, gpu, kind, tp)]) for tp in _DEGREES}
            times[gpu][f"{kind} update"] = LayerTimes({tp: (np.ones(1), each) for tp, each in updates.items()})
    return ProfiledLayers(times)


def peak_bytes(row: Mapping[Any, Any], known: Parts) -> float:
    """The bytes of the fullest device: of each stage the replica with the fewest devices counts."""
    return max(
        max(_stage_bytes(one, known, n, end) for n, end in enumerate(itertools.accumulate(size for _, size in one[3])))
        for one in trials(row)
    )


def _stage_bytes(one: tuple[str, int, int, _Stages, float], known: Parts, number: int, end: int) -> float:
    """Parameters, gradients and two moments in single precision, profiled activations of each micro-batch in flight,
    the gradients of activations while a layer goes backward, of logits the loss's two further copies, the flat copy of
    gradients that replicas add up, and what the framework takes itself.
    """
    model, samples, micro_batches, staged, _ = one
    replicas, count = staged[number]
    kinds, tp = [_kind(model, n) for n in range(end - count, end)], min(tp for _, tp in replicas)

    def size(kind: str, name: str) -> float:
        return known.size(model, tp, layer_of(model, kind), name)

    states = 4 * sum(size(kind, "params_bytes") for kind in kinds)
    in_flight = min(len(staged) - number, micro_batches)
    kept = in_flight * samples * sum(size(kind, "act_mem_bytes") for kind in kinds)
    hidden = SEQUENCE * MODELS[model].hidden * BYTES
    wide = 2 * SEQUENCE * MODELS[model].feed_forward * BYTES / tp
    logits = size("head", "act_output_bytes")
    going = {"embedding": 2 * hidden, "block": wide + 2 * hidden, "head": _LOSS_COPIES * logits}
    flat = min(states / 4, _BUCKET_BYTES) if len(replicas) > 1 else 0.0
    return states + kept + samples * max(going[kind] for kind in kinds) + flat + (PROFILED.own_bytes or 0.0)
