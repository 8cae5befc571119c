"""The costs of turning one sharding of a tensor into another."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._options import INFINITY_COST, ShardingOptions
from alpa_dejavu.sharding._spec import Shape, Spec, num_tiles

_MEMORY = 0.05
"""The cost of a byte of a result, over that of a byte sent along the fastest axis: memory is about ten times as fast as
links within a host, and of the results of operators that are compiled together about half go through it."""


class MeshCosts:
    """The costs of collectives on a mesh under the user's options, and of resharding by them."""

    def __init__(self, mesh: LogicalMesh, options: ShardingOptions) -> None:
        self.mesh = mesh
        self.options = options
        self.reshard = lru_cache(maxsize=None)(self._reshard)
        self.matrix = lru_cache(maxsize=None)(self._matrix)

    def all_reduce(self, num_bytes: float, axes: tuple[int, ...]) -> float:
        """Returns the cost of an all-reduce over the devices along all the given mesh axes."""
        return sum(self.mesh.all_reduce_cost(num_bytes, axis) for axis in axes)

    def all_gather(self, num_bytes: float, axis: int) -> float:
        """Returns the cost of an all-gather along a mesh axis, or that which the user's options set for every one."""
        return self._allowed(self.options.all_gather_cost, self.mesh.all_gather_cost, num_bytes, axis)

    def all_to_all(self, num_bytes: float, axis: int) -> float:
        """Returns the cost of an all-to-all along a mesh axis, or that which the user's options set for every one."""
        return self._allowed(self.options.all_to_all_cost, self.mesh.all_to_all_cost, num_bytes, axis)

    def _allowed(
        self, fixed: float | None, price: Callable[[float, int], float], num_bytes: float, axis: int
    ) -> float:
        # Along an axis that the batch is forced onto only gradients are sent, unless costs were measured.
        if fixed is not None:
            return fixed
        forced = self.mesh.profile is None and self.options.force_batch_dim_to_mesh_dim == axis
        return INFINITY_COST if forced else price(num_bytes, axis)

    def moved(self, num_bytes: np.ndarray) -> np.ndarray:
        """Returns the cost of computing results of so many bytes on a device, which goes through its memory."""
        return num_bytes * (0.0 if self.mesh.profile is not None else min(self.mesh.beta) * _MEMORY)

    def replication_penalty(self) -> float:
        """Returns a small cost of keeping a tensor whole, so that of equal solutions the one of less memory wins."""
        two = (*range(len(self.mesh.shape)), 0)[:2]
        return float(int(sum(self.mesh.all_reduce_cost(1, axis) for axis in two)))

    def _matrix(self, shape: Shape, itemsize: int, sources: tuple[Spec, ...], targets: tuple[Spec, ...]) -> np.ndarray:
        """Returns the cost from each source spec (rows) to each target spec (columns)."""
        if not shape:
            return np.zeros((len(sources), len(targets)))
        num_bytes = float(np.prod(shape)) * itemsize
        return np.array([[self.reshard(num_bytes, source, target) for target in targets] for source in sources])

    def _reshard(self, num_bytes: float, source: Spec, target: Spec) -> float:
        if source == target:
            return 0.0
        if len(self.mesh.axes) > 1 and _is_flat(source) != _is_flat(target) and any(source) and any(target):
            return self._reshard_mixed(num_bytes, source, target)
        return self._reshard_plain(num_bytes, source, target)

    def _reshard_plain(self, num_bytes: float, source: Spec, target: Spec) -> float:
        """Both specs see the mesh in the same way: each dimension is cut by one axis (or by all of them) or not."""
        cut, gathered = 0, []
        for before, after in zip(source, target, strict=True):
            if before == after:
                continue
            if before and after:
                return INFINITY_COST  # it would take a permutation of devices
            if after:
                cut += 1
            else:
                gathered.append(before)
        if not gathered:
            return 0.0
        if cut > 1 and len(gathered) > 1:
            return INFINITY_COST
        if cut == 1 and len(gathered) == 1:
            if len(self.mesh.axes) > 1:
                return INFINITY_COST
            return self.all_to_all(num_bytes, gathered[0][0])
        own_bytes, cost = num_bytes / num_tiles(source, self.mesh.shape), 0.0
        for axes in gathered:
            for axis in reversed(axes):
                own_bytes *= self.mesh.shape[axis]
                cost += self.all_gather(own_bytes, axis)
        return cost

    def _reshard_mixed(self, num_bytes: float, source: Spec, target: Spec) -> float:
        """One spec sees a grid, the other a line of devices: cut over all of them along one dimension.

        From grid to line only the inner axis may move from one dimension to another; from line to grid the same
        backwards, or a gather of one axis.
        """
        to_line = _is_flat(target)
        grid, line = (source, target) if to_line else (target, source)
        own_bytes = num_bytes / self.mesh.num_devices
        moved, opened = 0, 0
        for of_grid, of_line in zip(grid, line, strict=True):
            if of_grid == (1,) and not of_line:
                moved += 1
            elif not of_grid:
                opened += bool(of_line)
            elif of_grid[0] != (of_line or (-1,))[0]:
                return INFINITY_COST
        if to_line:
            return moved * self.all_to_all(own_bytes, 1) if moved <= 1 else INFINITY_COST
        if moved + opened > 1:
            return INFINITY_COST
        if moved:
            return self.all_to_all(own_bytes, 1)
        return self.all_gather(own_bytes, 0 if opened else 1)


def _is_flat(spec: Spec) -> bool:
    """Returns whether some dimension is cut by more than one axis: the mesh is seen as a line of devices."""
    return any(len(axes) > 1 for axes in spec)
