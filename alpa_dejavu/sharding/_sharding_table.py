"""All layers on all meshes, and stages as sums over their layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._ranges import FloatArray, stage_sum
from alpa_dejavu.sharding._layer_sharding import LayerSharding


@final
@dataclasses.dataclass(frozen=True, eq=False)
class StageLayers:
    """All L layers on one mesh, by where in a stage they are; layers that are alike share one object.

    Within a stage two layers agree on the layout of what crosses from one to the other. At its ends each is free: what
    crosses is brought to another mesh anyway.

    Attributes:
        inner: between two others.
        first, last: at the beginning and at the end of a stage of several layers.
        alone: as a stage of its own.
    """

    inner: tuple[LayerSharding, ...]
    first: tuple[LayerSharding, ...]
    last: tuple[LayerSharding, ...]
    alone: tuple[LayerSharding, ...]

    def mapped(self, change: Callable[[LayerSharding], LayerSharding]) -> StageLayers:
        """All layers changed; those that are alike still share one object."""
        known: dict[int, LayerSharding] = {}
        for row in (self.inner, self.first, self.last, self.alone):
            for one in row:
                if id(one) not in known:
                    known[id(one)] = change(one)
        rows = (self.inner, self.first, self.last, self.alone)
        return StageLayers(*(tuple(known[id(one)] for one in row) for row in rows))

    def sums(self, value: Callable[[LayerSharding], NDArray[np.float64]]) -> FloatArray:
        """Sums over all stages, shape (L, L, ...); entry (i, j) is about layers i..j, zero for j < i.

        Args:
            value: what is summed: an array, of the same shape for each layer.
        """
        known: dict[int, NDArray[np.float64]] = {}
        columns = []
        for row in (self.inner, self.first, self.last, self.alone):
            for one in row:
                if id(one) not in known:
                    known[id(one)] = np.asarray(value(one))
            columns.append(np.array([known[id(one)] for one in row]))
        shape = columns[0].shape
        flat = np.stack([column.reshape(len(column), -1) for column in columns])
        summed = [stage_sum(flat[:, :, n]) for n in range(flat.shape[-1])]
        return np.stack(summed, axis=-1).reshape(shape[0], *shape)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ShardingTable:
    """All L layers on all M logical meshes.

    Attributes:
        meshes: the layers on each mesh.
        num_bytes: shape (L, M, phases, kinds, axes): bytes on one device of all collectives of a phase (`PHASES`), a
            kind (`COLLECTIVE_KINDS`) and a mesh axis, of layers between two others (see `stages`).
        counts: the same shape: how many collectives these are.
        memory: shape (L, M, 6): bytes on one device of each of `MEMORY`; all but the last, the temporaries, add up.
        layers: for each layer, for each mesh, the layer's sharding between two others.
    """

    meshes: tuple[StageLayers, ...]
    num_bytes: FloatArray
    counts: FloatArray
    memory: FloatArray
    layers: tuple[tuple[LayerSharding, ...], ...]

    @classmethod
    def of(cls, meshes: Sequence[StageLayers]) -> ShardingTable:
        """From the layers on all meshes."""
        layers = tuple(zip(*(mesh.inner for mesh in meshes), strict=True))
        known: dict[int, tuple[FloatArray, FloatArray, FloatArray]] = {}
        for row in layers:
            for one in row:
                if id(one) not in known:
                    known[id(one)] = (*one.communicated(), one.memory())
        parts = [
            np.array([[known[id(one)][part] for one in row] for row in layers], dtype=np.float64) for part in range(3)
        ]
        return cls(tuple(meshes), parts[0], parts[1], parts[2], layers)

    def stages(self, mesh: int) -> tuple[FloatArray, FloatArray]:
        """Bytes and numbers of collectives of all stages on one mesh, shape (L, L, phases, kinds, axes).

        Entry (i, j) is about layers i..j; zero for j < i.
        """
        both = self.meshes[mesh].sums(lambda layer: np.stack(layer.communicated()))
        return both[:, :, 0], both[:, :, 1]
