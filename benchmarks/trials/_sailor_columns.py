"""Sailor's plans as pipelines of the planner's: replicas on nodes, layers by profiles, and what each device keeps."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from alpa_dejavu.costs.cost_models import CostModels
from alpa_dejavu.costs.latency import LayerTimes, ProfiledLayers
from alpa_dejavu.costs.runtime import ALPA, RuntimeProfile
from alpa_dejavu.planning.strategies import Task
from alpa_dejavu.planning.strategies.stages import Pipeline, PlacedStage, config_of
from alpa_dejavu.problem import Cluster, Device, Host, Link
from fitting import Array
from trials._folder import Folder
from trials._profiled_model import ProfiledLayer, profiled_model
from trials._sailor_links import FittedLinks
from trials._sailor_parts import BYTES, GPUS, NUM_LAYERS, SEQUENCE, Parts, parts
from trials._steps import columns, parts_of

_Replica = tuple[str, int]
"""Of a stage: its GPU and how many of them share its layers."""
_Stages = tuple[tuple[tuple[_Replica, ...], int], ...]
"""Of each stage its replicas, and the number of its layers."""
_FLOP_PER_S = 1e13
"""Of any GPU here: all that computes is profiled, and the optimizer's update is memory traffic."""
_DEGREES = (1, 2, 3, 4, 8)
"""Of tensor parallelism."""
_FORWARD = 1 / 3
"""The share of a layer's profiled seconds that is its forward pass, of which the model of layers knows the sum."""


def described(rows: pd.DataFrame, folder: Folder) -> dict[str, Array]:
    """Each row as a pipeline; of several pipelines that are cut alike the replicas of all, else the slowest one."""
    known = columns([_slowest(folder, trials(row)) for row in rows.to_dict("records")])
    return known | {
        "layers_from": np.full(len(rows), 1.0),
        "log_micro_batch": np.log(rows["micro_batch"].to_numpy(float)),
        "log_pp": np.log(known["num_stages"]),
        "log_tp": np.log([float(min(tp for _, tp in stages[0][0])) for stages in map(_first, rows.to_dict("records"))]),
        "model": np.array([float(list(NUM_LAYERS.values()).index(model)) for model in rows["model"]]),
        "source": np.array(
            [float(sum(map(ord, stages[0][0][0][0]))) for stages in map(_first, rows.to_dict("records"))]
        ),
    }


def kept(rows: pd.DataFrame, folder: Folder) -> dict[str, Array]:
    """The columns of `PeakMemory`: of the replica with the fewest devices of each stage."""
    each = [_kept(row, parts(folder)) for row in rows.to_dict("records")]
    stages = max(len(one["parameter_bytes"]) for one in each)
    found = {
        name: np.array(
            [np.pad(one[name], (0, stages - len(one[name]))) if np.ndim(one[name]) else one[name] for one in each]
        )
        for name in each[0]
    }
    same = described(rows, folder)
    return found | {name: same[name] for name in ("log_micro_batch", "log_pp", "model", "source")}


def _first(row: Mapping[Any, Any]) -> _Stages:
    return trials(row)[0][3]


def _slowest(folder: Folder, found: Sequence[tuple[str, int, int, _Stages, float]]) -> dict[str, Array]:
    """The parts of the pipeline that computes longest."""
    each = [_parts(folder, *one) for one in found]
    return max(each, key=lambda one: float((one["device_s"] * one["counts"])[:, :2].sum(axis=(1, 2)).max()))


def trials(row: Mapping[Any, Any]) -> list[tuple[str, int, int, _Stages, float]]:
    """The model, samples of a replica's micro-batch and number of micro-batches, stages, and GPUs of a node."""
    pipelines = json.loads(row["pipelines"])
    staged: dict[tuple[int, ...], list[list[_Replica]]] = {}
    for pipeline in pipelines:
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


@functools.cache
def _parts(
    folder: Folder, model: str, samples: int, micro_batches: int, staged: _Stages, per_node: float
) -> dict[str, Array]:
    return parts_of(*trial(folder, model, samples, micro_batches, staged, per_node))


def trial(
    folder: Folder, model: str, samples: int, micro_batches: int, staged: _Stages, per_node: float
) -> tuple[Task, Pipeline]:
    """A plan as the planner takes it, on as many nodes of each GPU as its replicas fill one after the other."""
    nodes, places = _placed(staged, int(np.ceil(per_node)))
    across = max(len(replicas) for replicas, _ in staged)
    whole, first, stages = samples * across, 0, []
    for (replicas, count), hosts in zip(staged, places, strict=True):
        widths = tuple(tp for _, tp in replicas)
        alike = len(set(widths)) == 1
        stages.append(
            PlacedStage(first, first + count - 1, hosts, config_of(len(widths), min(widths)), () if alike else widths)
        )
        first += count
    task = _task(folder, model, samples, across, nodes)
    return task, Pipeline(tuple(stages), whole, micro_batches)


def _placed(staged: _Stages, per_node: int) -> tuple[tuple[_Replica, ...], list[tuple[int, ...]]]:
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
def _task(folder: Folder, model: str, samples: int, across: int, nodes: tuple[_Replica, ...]) -> Task:
    return task_of(folder, model, nodes, samples * across, (samples,))


def task_of(
    folder: Folder,
    model: str,
    nodes: tuple[_Replica, ...],
    whole: int,
    samples: tuple[int, ...],
    runtime: str | RuntimeProfile = ALPA,
) -> Task:
    """A model on nodes of GPUs, for micro-batches of `whole` samples; layers are learned for replicas' micro-batches of
    these numbers of samples. Of the head's logits as many copies are kept as `PeakMemory` believes before it is fitted.
    """
    known, last = parts(folder), _last(model)

    def size(layer: int, name: str) -> float:
        return known.size(model, 1, layer, name)

    sent, kept_logits = whole * SEQUENCE * known.hidden(model) * BYTES, 2 * size(last, "act_input_bytes")
    described = [
        ProfiledLayer(
            "block" if 0 < n < last else "head" if n else "embedding",
            0 < n < last,
            size(min(n, 2) if n < last else n, "params_bytes"),
            sent,
            has_update=True,
            kept_bytes=whole * (size(min(n, 2) if n < last else n, "act_mem_bytes") + kept_logits * (n == last)),
        )
        for n in range(last + 1)
    ]
    latency = _latency(folder, model, samples, tuple(dict.fromkeys(gpu for gpu, _ in nodes)))
    models = CostModels.named(latency, FittedLinks(known), runtime)
    return Task(profiled_model(described, whole), whole, _cluster(nodes), whole, models)


@functools.cache
def _cluster(nodes: tuple[_Replica, ...]) -> Cluster:
    hosts = tuple(
        Host(f"node-{n}", Device(gpu, 96e9, {"float32": _FLOP_PER_S}, _FLOP_PER_S, GPUS[gpu]), count)
        for n, (gpu, count) in enumerate(nodes)
    )
    nominal = Link(0.0, 1e10)  # the fits say what links reach
    return Cluster("sailor", hosts, ((nominal,) * len(hosts),) * len(hosts))


@functools.cache
def _latency(folder: Folder, model: str, samples: tuple[int, ...], gpus: tuple[str, ...]) -> ProfiledLayers:
    """Learned from the profiles of the GPU and of the model; collectives of tensor parallelism are in them."""
    known = parts(folder)
    times: dict[str, dict[str, LayerTimes]] = {}
    counts = np.array(samples, dtype=np.float64)
    for gpu in gpus:
        both = {tp: np.array([known.device_s(model, gpu, tp, each) for each in samples]).T for tp in _DEGREES}
        passes = {name: {tp: one[n] for tp, one in both.items()} for n, name in enumerate(("block", "head"))}
        passes["embedding"] = {tp: np.zeros(len(samples)) for tp in both}
        updates = {"embedding": 0, "block": 2, "head": _last(model)}
        times[gpu] = {
            f"{name} {phase}": LayerTimes({tp: (counts, share * one) for tp, one in by_degree.items()})
            for name, by_degree in passes.items()
            for phase, share in (("forward", _FORWARD), ("backward", 1 - _FORWARD))
        }
        times[gpu] |= {
            f"{name} update": LayerTimes(
                {tp: (np.ones(1), np.array([known.update_s(model, gpu, tp, layer)])) for tp in both}
            )
            for name, layer in updates.items()
        }
    return ProfiledLayers(times)


def _last(model: str) -> int:
    return next(count for count, name in NUM_LAYERS.items() if name == model) - 1


def _kept(row: Mapping[Any, Any], known: Parts) -> dict[str, Any]:
    found = trials(row)
    model, samples, micro_batches, staged, _ = found[0]
    last, ends = _last(model), list(itertools.accumulate(count for _, count in staged))
    stages = []
    for (replicas, count), end in zip(staged, ends, strict=True):
        fewest, layers = min(tp for _, tp in replicas), range(end - count, end)

        def total(name: str, fewest: int = fewest, layers: range = layers) -> float:
            return sum(known.size(model, fewest, n if n in (0, last) else 2, name) for n in layers)

        head = known.size(model, fewest, last, "act_input_bytes") if last in layers else 0.0
        stages.append((total("params_bytes"), total("act_mem_bytes") * samples, head * samples))
    held, activations, logits = (np.array(column) for column in zip(*stages, strict=True))
    return {
        "parameter_bytes": held,
        "activation_bytes": activations,
        "logit_bytes": logits,
        "in_flight": np.minimum(len(staged) - np.arange(len(staged)), micro_batches).astype(float),
        "dp": float(max(len(replicas) for replicas, _ in staged) * len(found)),
    }
