"""The few ways in which what crosses from layer to layer may be cut."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._options import ShardingOptions
from alpa_dejavu.sharding._spec import Shape, Spec, divides, fills, tile

Axes = tuple[int, ...]


@final
@dataclasses.dataclass(frozen=True)
class BoundaryLayout:
    """The mesh axes that cut the batch, first, second and last dimension of tensors that cross between layers.

    First, second and last are counted without the batch dimension and without dimensions of size 1.

    >>> BoundaryLayout((0,), last=(1,)).spec((8, 16, 32), 0, (2, 2))
    ((0,), (), (1,))
    """

    batch: Axes = ()
    first: Axes = ()
    second: Axes = ()
    last: Axes = ()

    def spec(self, shape: Shape, batch_dim: int | None, mesh_shape: Shape) -> Spec | None:
        """Returns the mesh axes that cut each dimension of a tensor in this layout.

        It is None if the tensor has no batch dimension, too few dimensions, or can't be cut evenly.
        """
        if batch_dim is None:
            return None
        others = [dim for dim in range(len(shape)) if dim != batch_dim and shape[dim] > 1]
        cuts: dict[int, Axes] = {batch_dim: self.batch}
        for axes, dim in ((self.first, others[:1]), (self.second, others[1:-1][:1]), (self.last, others[-1:])):
            if axes and not dim:
                return None
            if axes:
                cuts[dim[0]] = (*cuts.get(dim[0], ()), *axes)
        spec = tile(len(shape), cuts, mesh_shape)
        return spec if divides(spec, shape, mesh_shape) and fills(spec, shape, mesh_shape) else None

    def nearest(self, shape: Shape, batch_dim: int | None, mesh_shape: Shape) -> Spec | None:
        """Returns the mesh axes that cut each dimension of a tensor in this layout, as far as it can be cut so.

        If not all dimensions of the layout can be cut, only the batch dimension is; None if that can't be cut either.
        """
        spec = self.spec(shape, batch_dim, mesh_shape)
        return spec if spec is not None else BoundaryLayout(self.batch).spec(shape, batch_dim, mesh_shape)


Layouts = tuple[BoundaryLayout, BoundaryLayout]
"""The layout of the largest tensors that cross a boundary, and the layout of the others."""


def pairs_of_layouts(mesh: LogicalMesh, options: ShardingOptions, mixed: bool) -> tuple[Layouts, ...]:
    """Returns the pairs of layouts to try for tensors that cross from one layer to the next.

    The first layout of a pair is for the largest tensors that cross, the second for all others. The two differ only
    where tensors of several sizes cross, such as a wide activation within a block and the residual that bypasses it.

    Args:
        mesh: the logical mesh of the devices.
        options: the user's sharding options.
        mixed: whether tensors of several sizes cross between any two layers.
    """
    found = boundary_layouts(mesh, options)
    return tuple((largest, rest) for largest in found for rest in (found if mixed else (largest,)))


def boundary_layouts(mesh: LogicalMesh, options: ShardingOptions) -> tuple[BoundaryLayout, ...]:
    """Returns the layouts to try for a tensor that crosses between layers, those that cut only the batch first.

    Where the options force the batch dimension onto a mesh axis, it is there in every layout. The other axis leaves
    tensors whole, or cuts the first dimension behind the batch (sequence), the second (experts) or the last one
    (features). On a mesh of two axes of which none is forced, one axis, the other or none cuts the batch.
    """
    axes, forced = mesh.axes, options.force_batch_dim_to_mesh_dim
    batches = [(forced,) if forced in axes else ()] if forced >= 0 else [*((axis,) for axis in axes), ()]
    found = [BoundaryLayout(batch) for batch in batches]
    if forced >= 0 or len(axes) == 1:
        batch = batches[0] if forced >= 0 else ()
        for other in (axis for axis in axes if axis != forced):
            found += [BoundaryLayout(batch, **{where: (other,)}) for where in ("first", "last", "second")]
    if options.allow_mixed_mesh_shape and len(axes) > 1:
        found.append(BoundaryLayout(axes))
    return tuple(dict.fromkeys(found))
