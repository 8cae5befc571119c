"""Sailor's plans as columns: what each stage computes, holds and sends, over the links of its nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trials._sailor_parts import BYTES, NUM_LAYERS, SEQUENCE, Parts

Replica = tuple[str, int]
"""Of a stage: its GPU and how many of them share its layers."""


def columns(rows: pd.DataFrame, parts: Parts) -> dict[str, NDArray[np.float64]]:
    """The columns of `PipelineRun` and `PeakMemory`."""
    plans = [_plan(row, parts) for row in rows.to_dict("records")]
    stages = max(len(plan["device_s"]) for plan in plans)
    return {
        name: np.array(
            [np.pad(plan[name], (0, stages - len(plan[name]))) if np.ndim(plan[name]) else plan[name] for plan in plans]
        )
        for name in plans[0]
    }


def _plan(row: Mapping[Any, Any], parts: Parts) -> dict[str, Any]:
    """Of several pipelines at a time, the one that takes longest; all of them reduce gradients together."""
    pipelines = json.loads(row["pipelines"])
    micro_batch, nodes, model = float(row["micro_batch"]), float(row["nodes"]), str(row["model"])
    staged = [[_replicas(stage) for stage in pipeline["tmp_per_stage"]] for pipeline in pipelines]
    dp = sum(max(len(replicas) for replicas in stages) for stages in staged)
    devices = sum(count for stages in staged for replicas in stages for _, count in replicas)
    per_node = max(devices / nodes, 1.0)
    num_micro_batches = max(float(row["global_batch"]) / micro_batch / dp, 1.0)
    best: dict[str, Any] = {}
    longest = -1.0
    for pipeline, stages in zip(pipelines, staged, strict=True):
        described = [
            _stage(parts, model, micro_batch, layers, stages[place : place + 2], dp, per_node)
            for place, layers in enumerate(pipeline["layers_per_stage"])
        ]
        known = {name: np.array([stage[name] for stage in described]) for name in described[0]}
        known["in_flight"] = np.minimum(len(stages) - np.arange(len(stages)), num_micro_batches)
        takes = known["device_s"].sum() + (num_micro_batches - 1) * known["device_s"].max()
        if takes > longest:
            best, longest = known, float(takes)
    return best | {
        "num_micro_batches": num_micro_batches,
        "dp": float(dp),
        "log_micro_batch": np.log(micro_batch),
        "log_pp": np.log(len(best["device_s"])),
        "model": float(list(NUM_LAYERS.values()).index(model)),
        "source": float(sum(map(ord, staged[0][0][0][0]))),
    }


def _replicas(stage: Sequence[Any]) -> list[Replica]:
    return [(str(gpus[0][0]), int(tp)) for gpus, tp in stage]


def _stage(
    parts: Parts,
    model: str,
    micro_batch: float,
    layers: Sequence[int],
    stages: Sequence[list[Replica]],
    dp: int,
    per_node: float,
) -> dict[str, float]:
    """A stage, and what it sends to the next (the second of `stages`, if there is one)."""
    last = next(count for count, name in NUM_LAYERS.items() if name == model) - 1
    blocks, heads = sum(0 < layer < last for layer in layers), sum(layer == last for layer in layers)
    replicas = stages[0]
    slowest = 0.0
    for gpu, tp in set(replicas):
        block_s, head_s = parts.device_s(model, gpu, tp, micro_batch)
        slowest = max(slowest, blocks * block_s + heads * head_s)
    fewest = min(tp for _, tp in replicas)

    def total(name: str) -> float:
        return sum(parts.size(model, fewest, layer if layer in (0, last) else 2, name) for layer in layers)

    held = total("params_bytes")
    return {
        "device_s": slowest,
        "blocks": blocks + 0.5 * heads,
        "parameter_bytes": held,
        "activation_bytes": total("act_mem_bytes") * micro_batch,
        "logit_bytes": heads * parts.size(model, fewest, last, "act_input_bytes") * micro_batch,
        "send_s": _send_s(parts, model, micro_batch, replicas, stages[1], per_node) if len(stages) > 1 else 0.0,
        "ring_s": _ring_s(parts, held, replicas, dp, per_node),
        "ring_bytes": held if dp > 1 else 0.0,
    }


def _send_s(
    parts: Parts, model: str, micro_batch: float, ours: list[Replica], theirs: list[Replica], per_node: float
) -> float:
    """Each device sends all activations to its peer; a node's devices share its links."""
    num_bytes = micro_batch * SEQUENCE * parts.hidden(model) * BYTES
    longest = 0.0
    for place, (gpu, tp) in enumerate(ours):
        peer = theirs[place * len(theirs) // len(ours)]
        rate = parts.between_bytes_per_s(((gpu, tp), peer), num_bytes)
        at_a_time = min(len(ours), max(per_node / tp, 1.0))
        longest = max(longest, num_bytes * tp * at_a_time / rate)
    return longest


def _ring_s(parts: Parts, held: float, replicas: list[Replica], dp: int, per_node: float) -> float:
    """The ring over the slowest link between neighbours; the rings of a node's devices share it."""
    if dp < 2:
        return 0.0
    moved = 2 * (dp - 1) / dp * held * replicas[0][1]
    if dp * replicas[0][1] <= per_node:
        return moved / parts.inside_bytes_per_s(replicas[0][0], int(per_node), held)
    around = zip(replicas, [*replicas[1:], replicas[0]], strict=True)
    return moved / min(parts.between_bytes_per_s(pair, held) for pair in around)
