"""All layers on all meshes, and stages as sums over their layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray, stage_sum
from alpa_dejavu.sharding.layer_sharding import LayerSharding


@final
@dataclasses.dataclass(frozen=True, eq=False)
class StageLayers:
    """All L layers on one mesh, by the stage that they are part of.

    Within a stage two layers agree on the layout of what crosses from one to the other. At its ends each is free: what
    crosses is brought to another mesh anyway. So a layer may have several variants.

    Attributes:
        variants: the first L are those of the stage of all layers, in order. Layers that are alike share one object.
        numbers: the layer that each variant is of.
        of_stages: for each stage i..j the variant of each of its layers n, shape (L, L, L), -1 outside. None: each
            layer has one variant.
    """

    variants: tuple[LayerSharding, ...]
    numbers: tuple[int, ...]
    of_stages: NDArray[np.intp] | None = None

    @property
    def whole(self) -> tuple[LayerSharding, ...]:
        """The layers of the stage of all layers."""
        return self.variants[: max(self.numbers) + 1]

    def mapped(self, change: Callable[[LayerSharding], LayerSharding]) -> StageLayers:
        """All layers changed; those that are alike still share one object."""
        known = {id(one): one for one in self.variants}
        changed = {key: change(one) for key, one in known.items()}
        return dataclasses.replace(self, variants=tuple(changed[id(one)] for one in self.variants))

    def sums(self, value: Callable[[LayerSharding], NDArray[np.float64]]) -> FloatArray:
        """Sums over all stages, shape (L, L, ...); entry (i, j) is about layers i..j, zero for j < i.

        Args:
            value: what is summed: an array, of the same shape for each layer.
        """
        values = np.array([value(one) for one in self.variants], dtype=np.float64)
        flat = values.reshape(len(values), -1)
        summed = [stage_sum(column, self.of_stages) for column in flat.T]
        size = len(self.whole)
        return np.stack(summed, axis=-1).reshape(size, size, *values.shape[1:])


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ShardingTable:
    """All L layers on all M logical meshes.

    Attributes:
        meshes: the layers on each mesh.
        num_bytes: shape (L, M, phases, kinds, axes): bytes on one device of all collectives of a phase
            (`COLLECTIVE_PHASES`), a kind (`COLLECTIVE_KINDS`) and a mesh axis, of the stage of all layers (see
            `stages`).
        counts: the same shape: how many collectives these are.
        memory: shape (L, M, 6): bytes on one device of each of `MEMORY`; all but the last, the temporaries, add up.
        layers: for each layer, for each mesh, the layer's sharding in the stage of all layers.
    """

    meshes: tuple[StageLayers, ...]
    num_bytes: FloatArray
    counts: FloatArray
    memory: FloatArray
    layers: tuple[tuple[LayerSharding, ...], ...]

    @classmethod
    def of(cls, meshes: Sequence[StageLayers]) -> ShardingTable:
        """Returns the table of the layers on all meshes."""
        layers = tuple(zip(*(mesh.whole for mesh in meshes), strict=True))
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
