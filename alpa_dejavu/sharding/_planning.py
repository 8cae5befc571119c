"""The site where an operator's strategies are made, from the mesh, the options and the tables of its operands."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from alpa_dejavu.sharding._operator import Operator
from alpa_dejavu.sharding._options import ShardingOptions
from alpa_dejavu.sharding._reshard import Costs
from alpa_dejavu.sharding._spec import Shape, Spec, divides, fills, num_tiles, replicated, tile
from alpa_dejavu.sharding._table import Strategy, Table


@dataclasses.dataclass(frozen=True)
class Site:
    """An operator with all that its sharding strategies depend on: operands, costs of collectives, surroundings.

    Attributes:
        operator: the operator.
        operands: its operands.
        tables: the strategy tables of its operands.
        costs: the costs of collectives on the mesh.
        batch_dim: the batch dimension of its result, or None.
        leader: the position of the operand whose cut the operator follows, and whether another would do as well.
        feeds_output: whether its result is an output of the program.
        feeds_broadcast: whether a broadcast is among the next few operators that read its result.
        batch_switch: whether it is a reshape between a batched matrix product and a transpose.
        users: how many operators read its result.
    """

    operator: Operator
    operands: tuple[Operator, ...]
    tables: tuple[Table, ...]
    costs: Costs
    batch_dim: int | None = None
    leader: tuple[int, bool] = (0, False)
    feeds_output: bool = False
    feeds_broadcast: bool = False
    batch_switch: bool = False
    users: int = 1

    @property
    def mesh_shape(self) -> Shape:
        """Returns the lengths of the logical mesh's axes."""
        return self.costs.mesh.shape

    @property
    def options(self) -> ShardingOptions:
        """Returns the sharding options that the user gave."""
        return self.costs.options

    @property
    def is_grid(self) -> bool:
        """Returns whether more than one axis of the mesh has more than one device."""
        return len(self.costs.mesh.axes) > 1

    def tile(self, *cuts: tuple[int | None, int], of: int | None = None) -> Spec | None:
        """Returns how an operator's result is cut by (dimension, mesh axis) pairs: the mesh axes of each dimension.

        It is None where a dimension is shorter than the number of devices that cut it. A pair whose dimension is None
        stands for one of size 1. With `of`, it is the operand at that position that is cut in place of the result.
        """
        operator = self.operator if of is None else self.operands[of]
        wanted: dict[int, tuple[int, ...]] = {}
        for dim, axis in cuts:
            if dim is not None:
                wanted[dim] = (*wanted.get(dim, ()), axis)
            elif self.mesh_shape[axis] > 1:
                return None
        spec = tile(operator.rank, wanted, self.mesh_shape)
        return spec if fills(spec, operator.shape, self.mesh_shape) else None


def one_dim_specs(site: Site, divisible: bool) -> list[Spec]:
    """Returns all ways to cut one dimension of an operator's result by one mesh axis.

    If `divisible` is true, only ways are returned that cut it into equal parts.
    """
    specs = (site.tile((dim, axis)) for dim in range(site.operator.rank) for axis in site.costs.mesh.axes)
    return _usable(site, specs, divisible)


def line_specs(site: Site, divisible: bool) -> list[Spec]:
    """Returns all ways to cut one dimension of an operator's result by all axes of a mesh; none if that has one axis.

    If `divisible` is true, only ways are returned that cut it into equal parts.
    """
    axes = site.costs.mesh.axes
    specs = (site.tile(*((dim, axis) for axis in axes)) for dim in range(site.operator.rank))
    return _usable(site, specs, divisible) if site.is_grid else []


def grid_specs(site: Site, divisible: bool) -> list[Spec]:
    """Returns all ways to cut an operator's result by every mesh axis, each on a dimension of its own.

    If `divisible` is true, only ways are returned that cut it into equal parts.
    """
    axes = site.costs.mesh.axes
    if not site.is_grid:
        return one_dim_specs(site, divisible)
    rank = site.operator.rank
    specs = (
        site.tile((first, axes[0]), (second, axes[1]))
        for first in range(rank)
        for second in range(rank)
        if first != second
    )
    return _usable(site, specs, divisible)


def _usable(site: Site, specs: Iterable[Spec | None], divisible: bool) -> list[Spec]:
    shape = site.operator.shape
    return [spec for spec in specs if spec is not None and (not divisible or divides(spec, shape, site.mesh_shape))]


def keep_batch_cut(site: Site, strategies: list[Strategy]) -> list[Strategy]:
    """Returns those of an operator's strategies that cut its batch dimension by the mesh axis that the options force.

    If that axis has length 1, they are those that leave the batch dimension whole. All strategies are returned if there
    are none such, no axis is forced, or the operator has no batch dimension.
    """
    axis = site.options.force_batch_dim_to_mesh_dim
    if axis < 0 or site.batch_dim is None:
        return strategies
    wanted = axis if site.mesh_shape[axis] > 1 else None
    kept = [s for s in strategies if next(iter(s.output[site.batch_dim]), None) == wanted]
    return kept or strategies


def whole(site: Site, computation: float = 0.0) -> Strategy:
    """Returns the sharding strategy that leaves an operator's operands and result whole on every device.

    `computation` is what it costs.
    """
    inputs = tuple(replicated(operand.rank) for operand in site.operands)
    return Strategy("R", replicated(site.operator.rank), inputs, computation=computation)


def whole_table(site: Site) -> Table:
    """Returns the table of the only sharding strategy of a constant, or unknown operator: whole on every device."""
    return make_table(site, [])


def make_table(
    site: Site, strategies: Sequence[Strategy], follow: int | None = None, sources: Sequence[int] = ()
) -> Table:
    """Builds the table of an operator's sharding strategies, with their costs, memory and resharding of operands.

    Args:
        site: the operator with its operands and their tables.
        strategies: its strategies; if there are none, it is computed whole on each device.
        follow: the position of the operand whose choice decides the operator's; None if it chooses for itself.
        sources: for each strategy the number of the strategy of that operand that it belongs to, -1 for none.
    """
    if not strategies:
        strategies, sources = [whole(site)], [-1]
    outputs = tuple(s.output for s in strategies)
    edges = []
    for position, (operand, table) in enumerate(zip(site.operands, site.tables, strict=True)):
        targets = tuple(s.operand(position, operand.rank) for s in strategies)
        edges.append(site.costs.matrix(operand.shape, operand.itemsize, table.outputs, targets))
    tiles = [num_tiles(spec, site.mesh_shape) for spec in outputs]
    return Table(
        strategies=tuple(strategies),
        cost=np.array([s.computation + s.communication for s in strategies]),
        memory=np.array([site.operator.num_bytes / n for n in tiles]),
        edges=tuple(edges),
        follow=follow,
        sources=tuple(sources),
        max_tiles=max(tiles) if follow is None else site.tables[follow].max_tiles,
    )
