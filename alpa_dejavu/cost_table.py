"""The cost table: every range of layers on every submesh with every config, by prefix sums and array operations.

An entry is what one micro-batch costs forward and backward. What a stage costs once a step stands beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._ranges import FloatArray, range_sum
from alpa_dejavu.communication import CommunicationModel
from alpa_dejavu.latency import LatencyModel
from alpa_dejavu.memory import StageMemory, successors_that_fit
from alpa_dejavu.memory_margin import COUNTED, MemoryMargin
from alpa_dejavu.pricing import KINDS, Pricing
from alpa_dejavu.problem import Cluster, Device, MeshConfig, Model, Run, SearchSpace, SlicingProblem, Submesh

__all__ = ["CostTable", "cost_table"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class CostTable:
    """Arrays of shape (L, L, S, C); entry (i, j, s, c) is about layers i..j on submesh s with config c.

    Attributes:
        compute_forward_s, compute_backward_s: operators of one micro-batch; finite everywhere, as the next ones are.
        collective_forward_s, collective_backward_s: among the stage's devices, for one micro-batch.
        boundary_forward_s, boundary_backward_s: taking in what neighbouring stages send, for one micro-batch.
        synchronisation_s, update_s: once a step: of gradients; the optimizer, and what the runtime adds.
        offered: whether the search may take the entry.
        max_n_succ_stages: how many stages may follow before memory is full; -1: it doesn't fit.
        memory: of submesh s with config c, None where there is no such config.
        memory_limit_bytes: of each device.
        pricing: what the entries are made of; None where they were made otherwise.
        margin: by which `max_n_succ_stages` reckons with more memory than the analytic count.
    """

    compute_forward_s: FloatArray
    compute_backward_s: FloatArray
    collective_forward_s: FloatArray
    collective_backward_s: FloatArray
    boundary_forward_s: FloatArray
    boundary_backward_s: FloatArray
    synchronisation_s: FloatArray
    update_s: FloatArray
    offered: NDArray[np.bool_]
    max_n_succ_stages: NDArray[np.int64]
    memory: tuple[tuple[StageMemory | None, ...], ...]
    memory_limit_bytes: float
    pricing: Pricing | None = None
    margin: MemoryMargin = COUNTED

    @property
    def compute_s(self) -> FloatArray:
        """Operators, forward and backward."""
        return self.compute_forward_s + self.compute_backward_s

    @property
    def collective_s(self) -> FloatArray:
        """Collectives, forward and backward."""
        return self.collective_forward_s + self.collective_backward_s

    @property
    def boundary_s(self) -> FloatArray:
        """Transfers from neighbours, forward and backward."""
        return self.boundary_forward_s + self.boundary_backward_s

    @property
    def per_step_s(self) -> FloatArray:
        """What comes once a step."""
        return self.synchronisation_s + self.update_s

    @property
    def costs_s(self) -> FloatArray:
        """Alpa's `compute_cost`: infinite where not offered, or where memory doesn't do."""
        total = self.compute_s + self.collective_s + self.boundary_s
        return np.where(self.offered & (self.max_n_succ_stages >= 0), total, np.inf)

    def slicing_problem(self, cluster: Cluster, space: SearchSpace, run: Run) -> SlicingProblem:
        """What a slicer is asked.

        Where all devices share one CPU, an entry counts by the share of the machine that its submesh has: a device's
        seconds are those of all of them computing at a time. What a micro-batch waits for between stages is hidden by
        the work on others, except while the pipeline fills and drains: once a step it counts in full.
        """
        sizes = np.array([submesh.num_devices for submesh in space.submeshes])
        objective = "inference" if run.schedule == "inference" else "training"
        share = (sizes / cluster.num_devices)[:, None] if cluster.shared else np.ones((len(sizes), 1))
        return SlicingProblem(
            costs_s=self.costs_s * share,
            submesh_sizes=sizes,
            num_devices=cluster.num_devices,
            num_micro_batches=run.num_micro_batches,
            max_n_succ_stages=self.max_n_succ_stages,
            per_step_s=self.per_step_s * share + self.boundary_s * (1 - share),
            objective="work" if cluster.shared else objective,
        )


def cost_table(
    model: Model,
    cluster: Cluster,
    space: SearchSpace,
    run: Run,
    latency: LatencyModel,
    communication: CommunicationModel,
    margin: MemoryMargin = COUNTED,
) -> CostTable:
    """The table of a model on a cluster; see `CostTable`.

    Layers on unlike hosts are costed on the slowest of them, and take the smallest one's memory.
    """
    device = slowest_device(cluster)
    pricing = Pricing(model, cluster, device, latency, communication)
    shape = (model.num_layers, model.num_layers, len(space.submeshes), len(space.configs[0]))
    seconds = np.zeros((len(KINDS), *shape))
    room = np.full(shape, -1, dtype=np.int64)
    offered = np.zeros(shape, dtype=np.bool_)
    memory: list[tuple[StageMemory | None, ...]] = []
    pricing.prepare(_choices(space))
    for s, (submesh, configs) in enumerate(zip(space.submeshes, space.configs, strict=True)):
        allowed = _allowed(model, submesh, cluster, space.allowed_imbalance)
        kept = [None if config is None else pricing.memory(config) for config in configs]
        memory.append(tuple(kept))
        for c, (config, stage) in enumerate(zip(configs, kept, strict=True)):
            if config is None or stage is None:
                continue
            offered[:, :, s, c] = allowed
            seconds[..., s, c] = pricing.seconds(submesh, config)
            room[:, :, s, c] = successors_that_fit(margin.needed(stage), device.memory_bytes, run)
    priced = dict(zip(KINDS, seconds, strict=True))
    return CostTable(
        **priced, offered=offered, max_n_succ_stages=room, memory=tuple(memory), memory_limit_bytes=device.memory_bytes,
        pricing=pricing, margin=margin,
    )


def _choices(space: SearchSpace) -> Iterator[tuple[Submesh, MeshConfig]]:
    for submesh, configs in zip(space.submeshes, space.configs, strict=True):
        yield from ((submesh, config) for config in configs if config is not None)


def slowest_device(cluster: Cluster) -> Device:
    """The device that a plan which may run anywhere must reckon with: the lowest rate, with the smallest memory."""
    devices = [host.device for host in cluster.hosts]
    slowest = min(devices, key=lambda device: device.rate("float32"))
    return dataclasses.replace(slowest, memory_bytes=min(device.memory_bytes for device in devices))


def _allowed(model: Model, submesh: Submesh, cluster: Cluster, imbalance: float) -> NDArray[np.bool_]:
    """Alpa's rules: the whole cluster is for all layers alone; shares of work and devices may differ only so much."""
    num_layers = model.num_layers
    allowed = np.triu(np.ones((num_layers, num_layers), dtype=np.bool_))
    if submesh.num_devices == cluster.num_devices:
        allowed[:] = False
        allowed[0, num_layers - 1] = True
    if np.isfinite(imbalance):
        work = range_sum([layer.forward.product_flop + layer.backward.product_flop for layer in model.layers])
        share = work / max(work[0, -1], 1.0)
        devices = submesh.num_devices / cluster.num_devices
        allowed &= (devices <= share * (1 + imbalance)) & (devices >= share / (1 + imbalance))
    return allowed
