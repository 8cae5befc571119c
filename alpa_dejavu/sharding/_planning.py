"""The strategies of an operator and their table of costs, and the site where they are made: the operator with its
operands' tables, the mesh and the options.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from alpa_dejavu.sharding._facts import Surroundings
from alpa_dejavu.sharding._operator import ProgramOperator
from alpa_dejavu.sharding._options import ShardingOptions
from alpa_dejavu.sharding._reshard import MeshCosts
from alpa_dejavu.sharding._spec import Shape, Spec, divides, fills, num_tiles, of_rank, replicated, tile


@dataclasses.dataclass(frozen=True)
class ShardingStrategy:
    """One way of computing an operator on a mesh: how result and operands are cut, and what that costs.

    Attributes:
        name: the strategy's name for people.
        output: for each dimension of the result the mesh axes that cut it.
        inputs: likewise for each operand as the operator needs it; empty if operands must be cut like the result.
        all_reduce: the mesh axes along which partial sums are added up; where they cut the result, too, each device
            only gets its part of the sum: a reduce-scatter.
        computation: the cost of computing the same on several devices, and of keeping a tensor whole.
        communication: the cost of the collectives within the operator.
    """

    name: str
    output: Spec
    inputs: tuple[Spec, ...] = ()
    all_reduce: tuple[int, ...] = ()
    computation: float = 0.0
    communication: float = 0.0

    @cached_property
    def cut(self) -> int:
        """Returns the mesh axes that cut the result, as a sum of 2 to the power of each."""
        return sum(1 << axis for axes in self.output for axis in axes)

    @cached_property
    def summed(self) -> int:
        """Returns the mesh axes along which partial sums are added up, as a sum of 2 to the power of each."""
        return sum(1 << axis for axis in self.all_reduce)

    def operand(self, position: int, rank: int) -> Spec:
        """Returns the spec in which the operand of a rank is needed at a position."""
        return self.inputs[position] if self.inputs else of_rank(self.output, rank)


@dataclasses.dataclass(frozen=True, eq=False)
class StrategyTable:
    """A table of all strategies of one operator, as arrays that the solver can add up.

    Attributes:
        strategies: the operator's strategies.
        cost: the cost of computation plus communication of each strategy, shape (strategies,).
        memory: the bytes of the result on one device under each strategy, shape (strategies,).
        edges: for each operand the cost of resharding it from each of its own strategies (rows) to the cut that each
            strategy of this operator needs (columns).
        follow: the position of the operand whose choice decides this operator's; None if it chooses for itself.
        sources: for each strategy the number of the followed operand's strategy that it belongs to; -1 for none.
        max_tiles: into how many parts the result is cut at most, by this operator or the one that it follows.
    """

    strategies: tuple[ShardingStrategy, ...]
    cost: np.ndarray
    memory: np.ndarray
    edges: tuple[np.ndarray, ...]
    follow: int | None
    sources: tuple[int, ...]
    max_tiles: int

    @cached_property
    def outputs(self) -> tuple[Spec, ...]:
        return tuple(strategy.output for strategy in self.strategies)

    @property
    def contents(self) -> tuple:
        """Returns a hashable tuple that equal tables share."""
        return (
            self.strategies,
            self.cost.tobytes(),
            self.memory.tobytes(),
            tuple((edge.shape, edge.tobytes()) for edge in self.edges),
            self.follow,
            self.sources,
            self.max_tiles,
        )


def unique_outputs(strategies: list[ShardingStrategy]) -> list[ShardingStrategy]:
    """Returns strategies without those that cut the result like an earlier one."""
    seen: dict[Spec, ShardingStrategy] = {}
    for strategy in strategies:
        seen.setdefault(strategy.output, strategy)
    return list(seen.values())


@dataclasses.dataclass(frozen=True)
class Site:
    """An operator with all that its sharding strategies depend on.

    Attributes:
        operator, operands: the operator and its operands.
        tables: the strategy tables of its operands.
        costs: the costs of collectives on the mesh.
        around: its surroundings in the program, such as its readers.
        batch_dim: the batch dimension of its result, or None.
    """

    operator: ProgramOperator
    operands: tuple[ProgramOperator, ...]
    tables: tuple[StrategyTable, ...]
    costs: MeshCosts
    around: Surroundings
    batch_dim: int | None = None

    @property
    def mesh_shape(self) -> Shape:
        return self.costs.mesh.shape

    @property
    def options(self) -> ShardingOptions:
        return self.costs.options

    @property
    def is_grid(self) -> bool:
        """Returns whether more than one axis of the mesh has more than one device."""
        return len(self.costs.mesh.axes) > 1

    @cached_property
    def leader(self) -> tuple[int, bool]:
        """Returns the position of the operand whose cut an operator follows, and whether another one is as good.

        An operand that can be cut into more parts is preferred, then one that lies deeper in the program.
        """
        best, tie = 0, False
        leaders = self.around.leaders
        tiles = [self.tables[position].max_tiles for position, _ in leaders]
        for n, (_, deeper) in enumerate(leaders[1:], 1):
            better = (tiles[n] > tiles[best]) - (tiles[n] < tiles[best]) or deeper[best]
            if better >= 0:
                best, tie = (n, False) if better else (best, True)
        return (leaders[best][0] if leaders else 0), tie

    def tile(self, *cuts: tuple[int | None, int], of: int | None = None) -> Spec | None:
        """Returns the spec of the result, or of the operand at position `of`, cut by (dimension, mesh axis) pairs.

        It is None where a dimension is shorter than the number of devices that cut it. A pair whose dimension is None
        stands for one of size 1.
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
    """Returns all ways to cut one dimension of the result by one mesh axis; if `divisible`, into equal parts."""
    specs = (site.tile((dim, axis)) for dim in range(site.operator.rank) for axis in site.costs.mesh.axes)
    return _usable(site, specs, divisible)


def line_specs(site: Site, divisible: bool) -> list[Spec]:
    """Returns all ways to cut one dimension of the result by all axes of a mesh; none if that has one axis."""
    axes = site.costs.mesh.axes
    specs = (site.tile(*((dim, axis) for axis in axes)) for dim in range(site.operator.rank))
    return _usable(site, specs, divisible) if site.is_grid else []


def grid_specs(site: Site, divisible: bool) -> list[Spec]:
    """Returns all ways to cut the result by every mesh axis, each on a dimension of its own."""
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


def keep_batch_cut(site: Site, strategies: list[ShardingStrategy]) -> list[ShardingStrategy]:
    """Returns those of the strategies that cut the batch dimension by the mesh axis that the options force, or leave it
    whole if that axis has length 1; all if there are none such, no axis is forced, or there is no batch dimension.
    """
    axis = site.options.force_batch_dim_to_mesh_dim
    if axis < 0 or site.batch_dim is None:
        return strategies
    wanted = axis if site.mesh_shape[axis] > 1 else None
    kept = [s for s in strategies if next(iter(s.output[site.batch_dim]), None) == wanted]
    return kept or strategies


def whole(site: Site, computation: float = 0.0) -> ShardingStrategy:
    """Returns the strategy that leaves operands and result whole on every device; `computation` is what it costs."""
    inputs = tuple(replicated(operand.rank) for operand in site.operands)
    return ShardingStrategy("R", replicated(site.operator.rank), inputs, computation=computation)


def whole_table(site: Site) -> StrategyTable:
    """Returns the table of a constant or unknown operator: whole on every device."""
    return make_table(site, [])


def make_table(
    site: Site, strategies: Sequence[ShardingStrategy], follow: int | None = None, sources: Sequence[int] = ()
) -> StrategyTable:
    """Builds the table of an operator's strategies, with their costs, memory and resharding of operands; without
    strategies, it is computed whole on each device. `follow` and `sources` are as in `StrategyTable`.
    """
    if not strategies:
        strategies, sources = [whole(site)], [-1]
    outputs = tuple(s.output for s in strategies)
    edges = []
    for position, (operand, table) in enumerate(zip(site.operands, site.tables, strict=True)):
        targets = tuple(s.operand(position, operand.rank) for s in strategies)
        edges.append(site.costs.matrix(operand.shape, operand.itemsize, table.outputs, targets))
    tiles = [num_tiles(spec, site.mesh_shape) for spec in outputs]
    return StrategyTable(
        strategies=tuple(strategies),
        cost=np.array([s.computation + s.communication for s in strategies]),
        memory=np.array([site.operator.num_bytes / n for n in tiles]),
        edges=tuple(edges),
        follow=follow,
        sources=tuple(sources),
        max_tiles=max(tiles) if follow is None else site.tables[follow].max_tiles,
    )
