"""A program solved for every pair of layouts at its two boundaries: its graph is reduced once for all of them.

A layout is one of the few ways in which what crosses from layer to layer may be cut.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable
from functools import cached_property
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.sharding._blocks import Blocks
from alpa_dejavu.sharding._eliminate import JointCosts, Reduced, reduce_graph, solve_by_elimination
from alpa_dejavu.sharding._graph import CostGraph, build_graph, roots_of
from alpa_dejavu.sharding._layer_program import LayerProgram
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._options import ShardingOptions
from alpa_dejavu.sharding._planning import ShardingStrategy
from alpa_dejavu.sharding._reshard import MeshCosts
from alpa_dejavu.sharding._solve import NamedSolver
from alpa_dejavu.sharding._spec import Shape, Spec, divides, fills, replicated, tile
from alpa_dejavu.sharding._strategies import SitedOperators, relaxed
from alpa_dejavu.sharding.layer_sharding import LayerSharding

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
        """Returns the spec of a tensor in this layout; None if it lacks a dimension, or can't be cut evenly."""
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
        """Returns the same; if not all dimensions can be cut, that which cuts the batch alone."""
        spec = self.spec(shape, batch_dim, mesh_shape)
        return spec if spec is not None else BoundaryLayout(self.batch).spec(shape, batch_dim, mesh_shape)


Layouts = tuple[BoundaryLayout, BoundaryLayout]
"""The layout of the largest tensors that cross a boundary, and the layout of the others."""


def pairs_of_layouts(mesh: LogicalMesh, options: ShardingOptions, mixed: bool) -> tuple[Layouts, ...]:
    """Returns the pairs of layouts to try for tensors that cross from one layer to the next, those that cut only the
    batch first. The two differ only where tensors of several sizes cross (`mixed`), such as a wide activation within a
    block and the residual that bypasses it.

    Where the options force the batch dimension onto a mesh axis, it is there in every layout. The other axis leaves
    tensors whole, or cuts the first dimension behind the batch (sequence), the second (experts) or the last one
    (features). On a mesh of two axes of which none is forced, one axis, the other or none cuts the batch.
    """
    axes, forced = mesh.axes, options.force_batch_dim_to_mesh_dim
    batches = [(forced,) if forced in axes else ()] if forced >= 0 else [*((axis,) for axis in axes), ()]
    layouts = [BoundaryLayout(batch) for batch in batches]
    if forced >= 0 or len(axes) == 1:
        batch = batches[0] if forced >= 0 else ()
        for other in (axis for axis in axes if axis != forced):
            layouts += [BoundaryLayout(batch, **{where: (other,)}) for where in ("first", "last", "second")]
    if options.allow_mixed_mesh_shape and len(axes) > 1:
        layouts.append(BoundaryLayout(axes))
    layouts = list(dict.fromkeys(layouts))
    return tuple((largest, rest) for largest in layouts for rest in (layouts if mixed else (largest,)))


Penalties = dict[int, NDArray[np.float64]]
"""The cost that is added to each choice of some nodes of the graph."""
Shardings: TypeAlias = dict[tuple[int, int, tuple[int, ...]], list[LayerSharding]]
"""A layer's shardings at each of some ZeRO levels, by the layouts before and after it, and these levels."""
Choice = Callable[[], dict[int, int]]
"""A function that returns the choices of what is left of the graph."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Workshop:
    """A cache of work that the auto-sharding of several layers on one mesh has in common.

    Attributes:
        mixed: whether tensors of several sizes cross the boundary between any two of the layers.
        sited: the layers' operators on the mesh, by the options that the sizes of their batches allow.
        blocks: the computations by which the layers' cost graphs are reduced.
        solvers: the solvers of the layers' programs.
    """

    mixed: bool = False
    sited: dict[ShardingOptions, SitedOperators] = dataclasses.field(default_factory=dict)
    blocks: Blocks = dataclasses.field(default_factory=Blocks)
    solvers: dict[LayerProgram, BoundarySolver] = dataclasses.field(default_factory=dict)

    def solver(self, program: LayerProgram, mesh: LogicalMesh, options: ShardingOptions) -> BoundarySolver:
        """Returns the solver of a program; equal programs share one."""
        if program not in self.solvers:
            self.solvers[program] = BoundarySolver(program, mesh, options, self)
        return self.solvers[program]


Workshops: TypeAlias = dict[tuple[LogicalMesh, ShardingOptions, bool], Workshop]
"""Workshops by the mesh, the options, and whether tensors of several sizes cross a boundary."""


@final
class BoundarySolver:
    """An auto-sharding solver of a layer on one mesh, for each pair of layouts at the layer's two boundaries.

    A layout says how mesh axes cut the tensors that cross the boundary to the layer before, or after.

    Attributes:
        layouts: the K layouts that are tried at either boundary; layers that share a `Workshop` have the same.
        shardings: a cache of the layer's shardings by layouts before and after it, and ZeRO levels.
    """

    def __init__(
        self,
        program: LayerProgram,
        mesh: LogicalMesh,
        options: ShardingOptions,
        workshop: Workshop | None = None,
    ) -> None:
        operators, workshop = program.operators, workshop or Workshop(bool(program.smaller))
        self.program, self.mesh, self.sequence_parallel = program, mesh, options.sequence_parallel
        self.layouts, self._solved_on = pairs_of_layouts(mesh, options, workshop.mixed), mesh.shape
        self._blocks, allowed = workshop.blocks, relaxed(program.facts, mesh, options)
        if allowed not in workshop.sited:
            workshop.sited[allowed] = SitedOperators(mesh, allowed, self._blocks)
        self._sited = workshop.sited[allowed].of(program.facts)
        self._roots = roots_of(operators, self._sited)
        self._costs, self._solver = MeshCosts(mesh, options), NamedSolver(options.solver)
        self._graph = build_graph(program.facts, self._sited, self._roots, self._blocks, self._costs)
        self._sides = [self._penalties(places) for places in (program.received, program.sent)]
        self._choices: dict[tuple[int, int], Choice] = {}
        self._complete: dict[tuple[int, int], dict[int, int]] = {}
        self._strategies: dict[tuple[int, int], tuple[ShardingStrategy, ...]] = {}
        self.shardings: Shardings = {}

    @cached_property
    def costs(self) -> NDArray[np.float64]:
        """Returns a layer's least sharding cost for each pair of boundary layouts, shape (K, K), but for a constant;
        rows are layouts before the layer, and the cost of impossible pairs is infinite.
        """
        costs = self._solve(self._reduced)
        if np.isfinite(costs).any():
            return costs
        self._reduced = reduce_graph(self._graph, self._blocks, self._nodes)
        return self._solve(self._reduced)

    def strategies(self, received: int, sent: int) -> tuple[ShardingStrategy, ...]:
        """Returns the best strategy of each operator, given the indices of the layouts before and after the layer."""
        if (received, sent) not in self._strategies:
            choice, entries = self._choice(received, sent), zip(self._sited, self._roots, strict=True)
            self._strategies[received, sent] = tuple([entry.strategies[choice[root]] for entry, root in entries])
        return self._strategies[received, sent]

    def _choice(self, received: int, sent: int) -> dict[int, int]:
        """The choice of each node of the graph."""
        assert np.isfinite(self.costs[received, sent]), "no solution has these layouts at its boundaries"
        if (received, sent) not in self._complete:
            self._complete[received, sent] = self._reduced.complete(self._choices[received, sent]())
        return self._complete[received, sent]

    def spec(self, place: int, layout: int) -> Spec | None:
        """Returns the spec that a layout has for the result of the operator at `place`; None where the layout doesn't
        say, as for a result without a batch dimension.
        """
        operator = self.program.operators[place]
        wanted = self.layouts[layout][place in self.program.smaller]
        return wanted.nearest(operator.shape, self.program.facts.batch_dims[place], self._solved_on)

    def lengthened(self, mesh: LogicalMesh) -> BoundarySolver:
        """Returns a solver on a mesh of longer axes, which cuts everything as it is best on this shorter one."""
        longer = copy.copy(self)
        longer.mesh, longer.shardings = mesh, {}
        return longer

    @cached_property
    def _nodes(self) -> set[int]:
        return {node for side in self._sides for penalties in side for node in penalties}

    @cached_property
    def _reduced(self) -> Reduced:
        return reduce_graph(self._graph.affordable(self._blocks), self._blocks, self._nodes)

    def _penalties(self, places: tuple[int, ...]) -> list[Penalties]:
        """Returns the penalties of each layout, for the nodes that decide how the results at a boundary are cut."""
        by_layout = []
        for layout in range(len(self.layouts)):
            penalties: Penalties = {}
            for place in places:
                wanted = self.spec(place, layout)
                if wanted is not None:
                    node = self._roots[place]
                    penalties[node] = penalties.get(node, 0.0) + self._penalty(place, wanted)
            by_layout.append(penalties)
        return by_layout

    def _penalty(self, place: int, wanted: Spec) -> NDArray[np.float64]:
        """Returns the penalty of each choice of an operator's node: the cost of bringing its result to the wanted spec.
        Where some choice has that spec, all choices that don't are forbidden instead.
        """
        operator, outputs = self.program.operators[place], self._sited[place].table.outputs
        cost = np.array([0.0 if spec == wanted else np.inf for spec in outputs])
        if not np.isfinite(cost).any():
            matrix = self._costs.matrix(operator.shape, operator.itemsize, outputs, (wanted,))
            cost = np.zeros(len(outputs)) if operator.kind == "parameter" else matrix[:, 0]
        picked: NDArray[np.float64] = cost[self._sited[place].remap]
        return picked

    def _solve(self, reduced: Reduced) -> NDArray[np.float64]:
        """Returns the cost of each pair of layouts; the choices of what is left of the graph go to `_choices`."""
        try:
            joint = JointCosts(reduced.core, self._reachable())
        except ValueError:
            joint = None
        size = len(self.layouts)
        first = self._first_alike(self.program.received), self._first_alike(self.program.sent)
        costs = np.full((size, size), np.inf)
        for received, sent in np.ndindex(size, size):
            like = first[0][received], first[1][sent]
            if like != (received, sent):
                costs[received, sent], self._choices[received, sent] = costs[like], self._choices[like]
                continue
            sides = self._sides[0][received], self._sides[1][sent]
            penalties = [(node, penalty) for side in sides for node, penalty in side.items()]
            costs[received, sent], self._choices[received, sent] = self._pair(reduced.core, joint, penalties)
        return costs

    def _reachable(self) -> dict[int, NDArray[np.int64]]:
        """Returns for each node at a boundary its choices that some layout allows."""
        reachable = {}
        for node in self._nodes:
            sides = [[layout[node] for layout in side if node in layout] for side in self._sides]
            allowed = np.ones(len(self._graph.costs[node]), dtype=np.bool_)
            for penalties in sides:
                if len(penalties) == len(self.layouts):
                    allowed &= np.isfinite(penalties).any(axis=0)
            reachable[node] = np.flatnonzero(allowed)
        return reachable

    def _first_alike(self, places: tuple[int, ...]) -> list[int]:
        """Returns for each layout the first one that cuts everything at a boundary in the same way."""
        first: dict[tuple[Spec | None, ...], int] = {}
        return [
            first.setdefault(tuple(self.spec(place, layout) for place in places), layout)
            for layout in range(len(self.layouts))
        ]

    def _pair(
        self, core: CostGraph, joint: JointCosts | None, penalties: list[tuple[int, NDArray[np.float64]]]
    ) -> tuple[float, Choice]:
        """Returns the cost of one pair of layouts, and how to get its choices."""
        if joint is not None:
            with contextlib.suppress(ValueError):
                cost, best = joint.cheapest(penalties)
                return cost, functools.partial(joint.complete, best)
        # The rest of the graph hangs together too closely for all pairs at once.
        costs = dict(core.costs)
        for node, penalty in penalties:
            costs[node] = costs[node] + penalty
        graph = CostGraph(costs, core.edges)
        try:
            choice = solve_by_elimination(graph, self._solver, self._blocks)
        except ValueError:
            return np.inf, dict
        return graph.objective(choice), lambda: choice

    def objective(self, received: int, sent: int) -> float:
        """Returns a layer's sharding cost with that of resharding what crosses its boundaries in these layouts."""
        choice = self._choice(received, sent)
        sides = self._sides[0][received], self._sides[1][sent]
        return self._graph.objective(choice) + sum(
            float(penalty[choice[node]]) for penalties in sides for node, penalty in penalties.items()
        )


@final
class OneDevice:
    """An auto-sharding solver of a layer on a mesh of one device: nothing is cut, and that costs nothing."""

    def __init__(self, program: LayerProgram, mesh: LogicalMesh) -> None:
        self.program, self.mesh = program, mesh
        self.layouts, self.sequence_parallel = ((BoundaryLayout(), BoundaryLayout()),), False
        self.costs: NDArray[np.float64] = np.zeros((1, 1))
        self.shardings: Shardings = {}

    def strategies(self, received: int, sent: int) -> tuple[ShardingStrategy, ...]:
        """Returns for each operator the strategy that leaves its result whole; the arguments don't matter."""
        ranks = [operator.rank for operator in self.program.operators]
        whole = [ShardingStrategy("R", replicated(rank)) for rank in range(max(ranks, default=0) + 1)]
        return tuple(whole[rank] for rank in ranks)

    def spec(self, place: int, layout: int) -> Spec | None:
        """Returns the spec of a whole tensor."""
        return replicated(self.program.operators[place].rank)

    def objective(self, received: int, sent: int) -> float:
        """Returns zero, since nothing is sent."""
        return 0.0
