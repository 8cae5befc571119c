"""A plan under DeepSpeed as columns: what each of its stages computes, holds and sends, over which links."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.costs.iteration._hierarchical import Array

__all__ = ["HostKind", "PipelinePlan", "ProfiledModel", "deepspeed_columns"]

_DEVICES_PER_HOST = 4
_LIGHT_S = 6e-4
"""A layer with a shorter forward time is launch alone: it costs the same for any micro-batch."""


@final
@dataclasses.dataclass(frozen=True)
class HostKind:
    """A machine type: its name, the name of its kind of device, and the bandwidths of its links within a host and to
    other hosts.
    """

    name: str
    device: str
    within_bytes_per_s: float
    between_bytes_per_s: float


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ProfiledModel:
    """A model whose L layers were profiled one by one.

    Attributes:
        forward_s: each layer's forward seconds for one sample, shape (L,), by the name of the device and the degree of
            tensor parallelism.
        is_block: which layers are transformer blocks, shape (L,).
        parameters: how many parameters each layer is known to have, shape (L,).
        unknown_parameters: a guess of how many parameters each layer has besides, shape (L,).
        tied_head: numbers of the layers that share the first layer's parameters, which don't count again if there is
            only one stage.
        out_elements: how many elements one sample's activations have after each layer, shape (L,).
    """

    forward_s: Mapping[tuple[str, int], Array]
    is_block: NDArray[np.bool_]
    parameters: Array
    unknown_parameters: Array
    tied_head: tuple[int, ...]
    out_elements: Array


@final
@dataclasses.dataclass(frozen=True)
class PipelinePlan:
    """A pipeline-parallel plan whose stages all have `tp` tensor-parallel times `dp` data-parallel devices.

    `micro_batch` is in samples of one data-parallel replica, `global_batch` in samples of all of them. `boundaries` are
    the first layer of each stage, then the number of layers.
    """

    tp: int
    dp: int
    micro_batch: int
    global_batch: int
    boundaries: tuple[int, ...]


def deepspeed_columns(
    plans: Sequence[PipelinePlan],
    models: Sequence[ProfiledModel],
    clusters: Sequence[Sequence[HostKind]],
    devices: Sequence[str],
    hosts: Sequence[str],
) -> dict[str, Array]:
    """Returns the columns that `DeepSpeedIteration` predicts from, all but "source", for some plans.

    Ranks go through tensor, then data, then pipeline parallelism.

    Args:
        plans: one for each row.
        models: the model of each plan.
        clusters: the cluster of each plan, as its hosts in the order of the ranks.
        devices: the names of the kinds of devices, in the order that `DeepSpeedIteration` has them.
        hosts: the names of the kinds of hosts, likewise.

    Raises:
        ValueError: a plan needs more devices than its cluster has.
    """
    rows = [_of_plan(*each, devices, hosts) for each in zip(plans, models, clusters, strict=True)]
    stages = max(len(row["blocks"]) for row in rows)
    return {name: np.stack([_padded(row[name], stages, name) for row in rows]) for name in rows[0]}


def _padded(value: Array, stages: int, name: str) -> Array:
    if value.ndim == 0:
        return value
    padding = [(0, stages - len(value)), *[(0, 0)] * (value.ndim - 1)]
    return np.pad(value, padding, constant_values=1.0 if name.endswith("bytes_per_s") else 0.0)


def _of_plan(
    plan: PipelinePlan,
    model: ProfiledModel,
    cluster: Sequence[HostKind],
    devices: Sequence[str],
    hosts: Sequence[str],
) -> dict[str, Array]:
    wide, pp = plan.tp * plan.dp, len(plan.boundaries) - 1
    if wide * pp > len(cluster) * _DEVICES_PER_HOST:
        raise ValueError(f"plan: needs {wide * pp} devices, but the cluster has {len(cluster) * _DEVICES_PER_HOST}")
    stages = []
    for number, cut in enumerate(zip(plan.boundaries, plan.boundaries[1:], strict=False)):
        ranks = np.arange(number * wide, (number + 1) * wide)
        last = number == pp - 1
        stages.append(
            _computed(plan, model, slice(*cut), [cluster[rank // _DEVICES_PER_HOST] for rank in ranks], devices, pp)
            | _ring(plan, cluster, ranks)
            | _sent(model, cut[1], cluster, ranks, wide, last)
            | _host(cluster, ranks, hosts)
        )
    columns = {name: np.array([stage[name] for stage in stages], dtype=np.float64) for name in stages[0]}
    numbers: dict[str, float] = {"tp": plan.tp, "dp": plan.dp, "micro_batch": plan.micro_batch}
    numbers["num_micro_batches"] = max(plan.global_batch / plan.dp / plan.micro_batch, 1)
    for name, value in numbers.items():
        columns[name] = np.array(float(value))
        columns[f"log_{name}"] = np.log(columns[name])
    return columns


def _computed(
    plan: PipelinePlan, model: ProfiledModel, cut: slice, kinds: Sequence[HostKind], devices: Sequence[str], pp: int
) -> dict[str, object]:
    present = {kind.device for kind in kinds}
    block = model.is_block[cut]
    forward, light_s, exchange_s = [], 0.0, 0.0
    for device in devices:
        times = model.forward_s.get((device, 1))
        if device not in present or times is None:
            forward.append(0.0)
            continue
        heavy = times[cut] >= _LIGHT_S
        forward.append(times[cut][heavy].sum())
        light_s = max(light_s, times[cut][~heavy].sum())
        if plan.tp > 1:
            more = model.forward_s[device, plan.tp][cut] - times[cut] / plan.tp
            exchange_s = max(exchange_s, np.maximum(more, 0)[block].sum())
    held = model.parameters.copy()
    if pp == 1:
        held[list(model.tied_head)] = 0.0
    heads = sum(cut.start <= layer < cut.stop for layer in model.tied_head)
    return {
        "forward_s": forward,
        "present": [float(device in present) for device in devices],
        "blocks": block.sum(),
        "launched": block.sum() + 0.3 * heads,
        "light_s": light_s,
        "exchange_s": exchange_s,
        "parameters": held[cut].sum() / plan.tp,
        "unknown_parameters": model.unknown_parameters[cut].sum() / plan.tp,
    }


def _ring(plan: PipelinePlan, cluster: Sequence[HostKind], ranks: NDArray[np.int64]) -> dict[str, object]:
    """The slowest link of the ring of the gradients; all the stage's rings go over it at the same time."""
    on = sorted({int(rank) // _DEVICES_PER_HOST for rank in ranks[:: plan.tp]})
    if len(on) > 1:
        rate = min(cluster[host].between_bytes_per_s for host in on)
    else:
        rate = cluster[on[0]].within_bytes_per_s
    return {"ring_bytes_per_s": rate / plan.tp, "ring_crosses": float(len(on) > 1)}


def _sent(
    model: ProfiledModel, cut: int, cluster: Sequence[HostKind], ranks: NDArray[np.int64], wide: int, last: bool
) -> dict[str, object]:
    """Returns the columns of what goes to the next stage, and of the slowest of the links that it goes over."""
    if last:
        return {"sent_elements": 0.0, "send_bytes_per_s": 1.0, "send_crosses": 0.0}
    pairs = [(int(rank) // _DEVICES_PER_HOST, (int(rank) + wide) // _DEVICES_PER_HOST) for rank in ranks]
    crossing = [pair for pair in pairs if pair[0] != pair[1]]
    rate = cluster[pairs[0][0]].within_bytes_per_s
    if crossing:
        at_a_time = max(sum(pair[0] == host for pair in crossing) for host, _ in crossing)
        rate = min(cluster[host].between_bytes_per_s for pair in crossing for host in pair) / at_a_time
    return {
        "sent_elements": model.out_elements[cut - 1],
        "send_bytes_per_s": rate,
        "send_crosses": float(bool(crossing)),
    }


def _host(cluster: Sequence[HostKind], ranks: NDArray[np.int64], hosts: Sequence[str]) -> dict[str, object]:
    """The kind of host whose links are the slowest here."""
    kinds = [cluster[int(rank) // _DEVICES_PER_HOST] for rank in ranks]
    return {"host": hosts.index(min(kinds, key=lambda kind: kind.between_bytes_per_s).name)}
