"""What a sharded layer computes, sends and keeps on each device, and all layers on all meshes as arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._ranges import FloatArray, range_sum
from alpa_dejavu.sharding._spec import Shape, Spec

COLLECTIVE_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
PHASES = ("forward", "backward", "gradient", "update")
"""The first two happen for each micro-batch; gradients are added up, and parameters updated, once a step."""
MICRO_BATCH_PHASES = 2
MEMORY = ("parameter", "optimizer", "gradient", "activation", "input", "temporary")


@final
@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives that are alike.

    Attributes:
        kind: one of `COLLECTIVE_KINDS`.
        num_bytes: of one of them, as `CommunicationModel.seconds` takes them: what each device holds before an
            all-reduce, a reduce-scatter or an all-to-all, and after an all-gather.
        axis: of the logical mesh; all groups along it do the same at a time.
        phase: one of `PHASES`.
        count: how many there are; a scan's trips count.
    """

    kind: str
    num_bytes: float
    axis: int
    phase: str
    count: float = 1.0

    @property
    def when(self) -> str:
        """"micro-batch" or "step": how often it happens."""
        return "micro-batch" if self.phase in PHASES[:MICRO_BATCH_PHASES] else "step"


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LayerSharding:
    """One layer on one logical mesh; bytes are of one device.

    Attributes:
        mesh_shape: of the logical mesh.
        collectives: all of them.
        parameter_bytes, optimizer_bytes, gradient_bytes: what stays for the whole training.
        activation_bytes: what waits for the backward pass, of one micro-batch, made by the layer itself.
        input_bytes: of that, what the layer gets from the one before: all that waits where the layer is rematerialised.
        temporary_bytes: the peak of what lives only while the layer computes.
        forward_shares, backward_shares, update_shares: for each operator record of `features.layer_features`, in that
            order, which share of it one device computes.
        cost: the engine's objective.
        input_layout, output_layout: how the main tensor is cut at the boundary to the layer before, and after.
    """

    mesh_shape: Shape
    collectives: tuple[Collective, ...]
    parameter_bytes: float
    optimizer_bytes: float
    gradient_bytes: float
    activation_bytes: float
    input_bytes: float
    temporary_bytes: float
    forward_shares: FloatArray
    backward_shares: FloatArray
    update_shares: FloatArray
    cost: float
    input_layout: Spec | None = None
    output_layout: Spec | None = None

    def communicated(self) -> tuple[FloatArray, FloatArray]:
        """Bytes and numbers of collectives, each of shape (phases, kinds, axes)."""
        shape = (len(PHASES), len(COLLECTIVE_KINDS), len(self.mesh_shape))
        num_bytes, counts = np.zeros(shape), np.zeros(shape)
        for collective in self.collectives:
            place = PHASES.index(collective.phase), COLLECTIVE_KINDS.index(collective.kind), collective.axis
            num_bytes[place] += collective.num_bytes * collective.count
            counts[place] += collective.count
        return num_bytes, counts

    def memory(self) -> FloatArray:
        """Bytes of each of `MEMORY`, in order."""
        return np.array([getattr(self, f"{name}_bytes") for name in MEMORY])


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ShardingTable:
    """All L layers on all M logical meshes.

    Attributes:
        num_bytes: shape (L, M, phases, kinds, axes): bytes on one device of all collectives of a phase (`PHASES`), a
            kind (`COLLECTIVE_KINDS`) and a mesh axis; those of a stage are sums over its layers (`stages`).
        counts: the same shape: how many collectives these are.
        memory: shape (L, M, 6): bytes on one device of each of `MEMORY`; all but the last, the temporaries, add up.
        layers: for each layer, for each mesh, the layer's sharding. Layers that are alike share one object.
    """

    num_bytes: FloatArray
    counts: FloatArray
    memory: FloatArray
    layers: tuple[tuple[LayerSharding, ...], ...]

    @classmethod
    def of(cls, layers: Sequence[Sequence[LayerSharding]]) -> ShardingTable:
        """From the shardings of all layers (rows) on all meshes (columns)."""
        known: dict[int, tuple[FloatArray, FloatArray, FloatArray]] = {}
        for row in layers:
            for one in row:
                if id(one) not in known:
                    known[id(one)] = (*one.communicated(), one.memory())
        parts = [
            np.array([[known[id(one)][part] for one in row] for row in layers], dtype=np.float64) for part in range(3)
        ]
        return cls(parts[0], parts[1], parts[2], tuple(tuple(row) for row in layers))

    def stages(self, mesh: int) -> tuple[FloatArray, FloatArray]:
        """Bytes and numbers of collectives of all stages on one mesh, shape (L, L, phases, kinds, axes).

        Entry (i, j) is about layers i..j; zero for j < i.
        """
        return _ranges(self.num_bytes[:, mesh]), _ranges(self.counts[:, mesh])


def _ranges(values: NDArray[np.float64]) -> FloatArray:
    """`range_sum` along the first dimension of an array, for each of the other places."""
    flat = values.reshape(len(values), -1)
    summed = np.stack([range_sum(column) for column in flat.T], axis=-1)
    return summed.reshape(len(values), *values.shape)
