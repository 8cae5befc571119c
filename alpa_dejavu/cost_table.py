"""The cost table: every range of layers on every submesh with every config, by prefix sums and array operations.

An entry is what one micro-batch costs forward and backward. What a stage costs once a step stands beside it.
"""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._ranges import FloatArray, range_sum
from alpa_dejavu.boundary import Boundary
from alpa_dejavu.communication import CommunicationModel, Group
from alpa_dejavu.latency import LatencyModel
from alpa_dejavu.memory import ModelMemory, StageMemory, stage_memory, successors_that_fit
from alpa_dejavu.problem import Cluster, Device, MeshConfig, Model, Run, SearchSpace, SlicingProblem, Submesh

__all__ = ["CostTable", "cost_table"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class CostTable:
    """Arrays of shape (L, L, S, C); entry (i, j, s, c) is about layers i..j on submesh s with config c.

    Attributes:
        compute_s, collective_s, boundary_s: of one micro-batch, forward and backward; finite everywhere.
        per_step_s: once a step: gradient synchronisation, optimizer, what the runtime adds.
        offered: whether the search may take the entry.
        max_n_succ_stages: how many stages may follow before memory is full; -1: it doesn't fit.
        memory: of submesh s with config c, None where there is no such config.
        memory_limit_bytes: of each device.
    """

    compute_s: FloatArray
    collective_s: FloatArray
    boundary_s: FloatArray
    per_step_s: FloatArray
    offered: NDArray[np.bool_]
    max_n_succ_stages: NDArray[np.int64]
    memory: tuple[tuple[StageMemory | None, ...], ...]
    memory_limit_bytes: float

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
) -> CostTable:
    """The table of a model on a cluster; see `CostTable`.

    Layers on unlike hosts are costed on the slowest of them, and take the smallest one's memory.
    """
    device = slowest_device(cluster)
    pricing = _Pricing(model, cluster, run, device, latency, communication)
    shape = (model.num_layers, model.num_layers, len(space.submeshes), len(space.configs[0]))
    compute, collective, boundary, per_step = (np.zeros(shape) for _ in range(4))
    room = np.full(shape, -1, dtype=np.int64)
    offered = np.zeros(shape, dtype=np.bool_)
    memory: list[tuple[StageMemory | None, ...]] = []
    for s, (submesh, configs) in enumerate(zip(space.submeshes, space.configs, strict=True)):
        allowed = _allowed(model, submesh, cluster, space.allowed_imbalance)
        kept = [None if config is None else stage_memory(pricing.memory, config, run) for config in configs]
        memory.append(tuple(kept))
        for c, (config, stage) in enumerate(zip(configs, kept, strict=True)):
            if config is None or stage is None:
                continue
            offered[:, :, s, c] = allowed
            compute[:, :, s, c] = pricing.compute_s(config)
            collective[:, :, s, c] = pricing.collective_s(submesh, config)
            boundary[:, :, s, c] = pricing.boundary_s(submesh)
            per_step[:, :, s, c] = pricing.per_step_s(submesh, config)
            room[:, :, s, c] = successors_that_fit(stage, device.memory_bytes, run)
    return CostTable(compute, collective, boundary, per_step, offered, room, tuple(memory), device.memory_bytes)


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


@final
class _Pricing:
    """Seconds of each kind for all ranges of layers on one mesh, arrays of shape (L, L)."""

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        run: Run,
        device: Device,
        latency: LatencyModel,
        communication: CommunicationModel,
    ) -> None:
        self._model, self._cluster, self._run, self._device = model, cluster, run, device
        self._latency, self._communication = latency, communication
        self._boundary = Boundary.of(model)
        self.memory = ModelMemory.of(model)
        self._computed: dict[tuple[int, int], FloatArray] = {}

    def compute_s(self, config: MeshConfig) -> FloatArray:
        """All layers' operators divided among the devices, and the start of the computations."""
        ways = config.data_parallel, config.tensor_parallel
        if ways not in self._computed:
            seconds = [
                self._latency.predict(layer.forward.split(*ways), self._device).total_s
                + self._latency.predict(layer.backward.split(*ways), self._device).total_s
                for layer in self._model.layers
            ]
            starts = 2 if self._model.training else 1
            self._computed[ways] = range_sum(seconds) + starts * self._device.dispatch_s
        return self._computed[ways]

    def collective_s(self, submesh: Submesh, config: MeshConfig) -> FloatArray:
        """What tensor-parallel devices add up for each micro-batch; half of it belongs to backward."""
        across, along = config.groups(submesh)
        group = Group(self._cluster, along, concurrent=len(across))
        share = 1.0 if self._model.training else 0.5
        price = self._communication.seconds
        seconds = [
            share * float(price("all_reduce", np.array(layer.exchanged_bytes) / len(across), group).sum())
            for layer in self._model.layers
        ]
        return range_sum(seconds)

    def boundary_s(self, submesh: Submesh) -> FloatArray:
        """What a stage takes in from its neighbours.

        In one host its devices take their shares at a time; between hosts, the hosts do.
        """
        inside = len(self._cluster.hosts) == 1
        ends = (0, 0) if inside else (0, 1)
        lanes = submesh.num_devices if inside else submesh.num_hosts
        bound = self._boundary
        group = Group(self._cluster, ends)
        total = np.zeros_like(bound.forward_bytes)
        for num_bytes, tensors in (
            (bound.forward_bytes, bound.forward_tensors),
            (bound.backward_bytes, bound.backward_tensors),
        ):
            each = num_bytes / np.maximum(tensors, 1) / lanes
            total += tensors * self._communication.seconds("send", each, group)
        return total

    def per_step_s(self, submesh: Submesh, config: MeshConfig) -> FloatArray:
        """Synchronising the gradients of data-parallel devices, the optimizer, and what the runtime adds."""
        if not self._model.training:
            return np.full_like(self.memory.gradients, self._device.step_s)
        across, along = config.groups(submesh)
        price = self._communication.seconds
        sync = price(
            "all_reduce", self.memory.gradients / len(along), Group(self._cluster, across, concurrent=len(along))
        )
        ways = len(along) * (len(across) if self._run.sharded_optimizer else 1)
        updates = [layer.update.split(1, ways) for layer in self._model.layers]
        update = [self._latency.predict(operators, self._device).total_s for operators in updates]
        return sync + range_sum(update) + self._device.step_s
