"""What jax 0.3.22 could say of a ShardingSpec and stock jax no longer can: as an OpSharding, and from the axes of a
mesh.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax._src.lib import xla_client as xc
from jax._src.sharding_specs import Chunked, NoSharding, Replicated, ShardedAxis, ShardingSpec, Unstacked

__all__ = ["hashable_index", "new_mesh_sharding_specs", "sharding_proto"]


def hashable_index(index: Any) -> Any:
    """A form of an index (an integer, a slice or a tuple of them) that can be hashed on every Python."""
    if isinstance(index, slice):
        return (index.start, index.stop)
    if isinstance(index, tuple):
        return tuple(hashable_index(part) for part in index)
    return index


def sharding_proto(spec: ShardingSpec, special_axes: Mapping[int, Any] | None = None) -> xc.OpSharding:
    """The OpSharding that places an array on a mesh, numbered row by row, as `spec` does.

    Args:
        spec: how the array's dimensions are cut, and which mesh axes hold the pieces and which hold copies.
        special_axes: not supported; Alpa passes an empty one.

    Raises:
        NotImplementedError: `special_axes` aren't empty, or a dimension is unstacked (`pmap` only).
    """
    if special_axes:
        raise NotImplementedError(f"manual axes {dict(special_axes)} in a sharding specification; use plain axes")
    chunks: list[int] = []
    tile_shape: list[int] = []
    for dimension in spec.sharding:
        if isinstance(dimension, Unstacked):
            raise NotImplementedError("an unstacked dimension has no OpSharding; use Chunked")
        sizes = list(dimension.chunks) if isinstance(dimension, Chunked) else []
        chunks += sizes
        tile_shape.append(int(np.prod(sizes, dtype=np.int64)))

    proto = xc.OpSharding()
    if all(size == 1 for size in tile_shape):
        proto.type = xc.OpSharding.Type.REPLICATED
        return proto
    mesh_shape = [
        chunks[assignment.axis] if isinstance(assignment, ShardedAxis) else assignment.replicas
        for assignment in spec.mesh_mapping
    ]
    devices = np.arange(int(np.prod(mesh_shape))).reshape(mesh_shape)
    sharded = {a.axis: position for position, a in enumerate(spec.mesh_mapping) if isinstance(a, ShardedAxis)}
    copies = [position for position, a in enumerate(spec.mesh_mapping) if isinstance(a, Replicated)]
    devices = devices.transpose([sharded[axis] for axis in range(len(chunks))] + copies)
    replicas = int(np.prod([mesh_shape[position] for position in copies], dtype=np.int64))

    proto.type = xc.OpSharding.Type.OTHER
    if replicas > 1:
        proto.replicate_on_last_tile_dim = True
        tile_shape.append(replicas)
    proto.tile_assignment_dimensions = tile_shape
    proto.tile_assignment_devices = [int(device) for device in devices.flat]
    return proto


def new_mesh_sharding_specs(
    axis_sizes: Mapping[str, int], axis_names: Sequence[str]
) -> Callable[[int, Mapping[str, int]], ShardingSpec]:
    """Makes specifications on a mesh with named axes: of a rank and a mapping from mesh axis to array dimension."""
    return functools.partial(_mesh_sharding_spec, axis_sizes, axis_names)


def _mesh_sharding_spec(
    axis_sizes: Mapping[str, int], axis_names: Sequence[str], rank: int, dimension_of: Mapping[str, int]
) -> ShardingSpec:
    chunks: list[list[int]] = [[] for _ in range(rank)]
    # The order of the mapping is the order in which a dimension is cut, first axis outermost.
    for axis, dimension in dimension_of.items():
        chunks[dimension].append(axis_sizes[axis])
    order = sorted(dimension_of, key=lambda axis: dimension_of[axis])  # stable: keeps the order within a dimension
    position = {axis: number for number, axis in enumerate(order)}
    return ShardingSpec(
        sharding=[Chunked(sizes) if sizes else NoSharding() for sizes in chunks],
        mesh_mapping=[
            ShardedAxis(position[axis]) if axis in position else Replicated(axis_sizes[axis]) for axis in axis_names
        ],
    )
