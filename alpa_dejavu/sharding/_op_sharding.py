"""Specs in the form in which HLO carries them, and back."""

import math
from functools import lru_cache

import numpy as np

from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._spec import Spec, is_replicated, replicated
from alpa_dejavu.sharding.hlo.schema import OpSharding
from alpa_dejavu.sharding.hlo.shardings import MAXIMAL, OTHER, REPLICATED


@lru_cache(maxsize=4096)
def to_op_sharding(spec: Spec, mesh: LogicalMesh) -> OpSharding:
    """Converts a spec into an HLO `OpSharding`, which is cached and shared between calls: copy it before changing it.

    Devices that hold the same tile are listed along a last dimension of the tile assignment.
    """
    if is_replicated(spec):
        return OpSharding(type=REPLICATED)
    used = [axis for axes in spec for axis in axes]
    unused = [axis for axis in range(len(mesh.shape)) if axis not in used]
    tiles = [math.prod(mesh.shape[axis] for axis in axes) for axes in spec]
    copies = math.prod(mesh.shape[axis] for axis in unused)
    devices = np.array(mesh.device_ids).reshape(mesh.shape).transpose(used + unused).reshape(-1)
    return OpSharding(
        type=OTHER, tile_assignment_dimensions=tiles + [copies] * (copies > 1),
        tile_assignment_devices=devices.tolist(), replicate_on_last_tile_dim=copies > 1,
    )


def from_op_sharding(sharding: OpSharding, rank: int, mesh: LogicalMesh) -> Spec | None:
    """Converts an HLO `OpSharding` of a tensor of a rank into a spec; None if it cuts nothing (type MANUAL), or isn't a
    cut along whole axes of the mesh.
    """
    if sharding.type in (REPLICATED, MAXIMAL):
        return replicated(rank)
    if sharding.type != OTHER or rank == 0:
        return None
    tiles = list(sharding.tile_assignment_dimensions)
    devices = np.array(sharding.tile_assignment_devices, dtype=int)
    if not len(devices):
        dims = list(sharding.iota_reshape_dims)
        devices = np.arange(math.prod(dims)).reshape(dims).transpose(list(sharding.iota_transpose_perm)).reshape(-1)
    places = {device: np.unravel_index(i, mesh.shape) for i, device in enumerate(mesh.device_ids)}
    if len(devices) != mesh.num_devices or any(device not in places for device in devices):
        return None
    grid = devices.reshape(tiles)
    spec = []
    for dim in range(rank):
        line = np.moveaxis(grid, dim, 0).reshape(tiles[dim], -1)[:, 0]
        moving = [axis for axis in range(len(mesh.shape)) if len({places[d][axis] for d in line}) > 1]
        # The innermost axis is the one that the first step along the line moves along.
        start = places[line[0]]
        first = {axis: next(i for i, d in enumerate(line) if places[d][axis] != start[axis]) for axis in moving}
        spec.append(tuple(sorted(moving, key=first.__getitem__, reverse=True)))
    result: Spec = tuple(spec)
    again = to_op_sharding(result, mesh)
    same = list(again.tile_assignment_dimensions)[:rank] == tiles[:rank] and _same_tiles(again, devices, tiles, rank)
    return result if same else None


def _same_tiles(again: OpSharding, devices: np.ndarray, tiles: list[int], rank: int) -> bool:
    """Returns whether both give every device the same tile; the order among devices that share one does not matter."""
    if again.type == REPLICATED:
        return math.prod(tiles[:rank]) == 1
    count = math.prod(tiles[:rank])
    left = np.sort(devices.reshape(count, -1), axis=1)
    right = np.sort(np.array(again.tile_assignment_devices).reshape(count, -1), axis=1)
    return bool((left == right).all())
