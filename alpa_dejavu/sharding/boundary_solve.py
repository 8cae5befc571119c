"""A program solved for every pair of layouts at its two boundaries: its graph is reduced once for all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from functools import cached_property
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.sharding._blocks import Blocks
from alpa_dejavu.sharding._boundary_layouts import BoundaryLayout, pairs_of_layouts
from alpa_dejavu.sharding._eliminate import Reduced, reduce_graph, solve_by_elimination
from alpa_dejavu.sharding._graph import CostGraph, build_graph, merge_followers
from alpa_dejavu.sharding._joint import JointCosts
from alpa_dejavu.sharding._layer_program import LayerProgram
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._options import ShardingOptions
from alpa_dejavu.sharding._reshard import Costs
from alpa_dejavu.sharding._solve import NamedSolver
from alpa_dejavu.sharding._spec import Spec, replicated
from alpa_dejavu.sharding._strategies import TableStore, operator_tables
from alpa_dejavu.sharding._table import Strategy

Penalties = dict[int, NDArray[np.float64]]
"""The cost that is added to each choice of some nodes of the graph."""
Choice = Callable[[], dict[int, int]]
"""A function that returns the choices of what is left of the graph."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Workshop:
    """A cache of work that the auto-sharding of several layers on one mesh has in common.

    Attributes:
        mixed: whether tensors of several sizes cross the boundary between any two of the layers.
        tables: the tables of the layers' operators' sharding strategies.
        blocks: the computations by which the layers' cost graphs are reduced.
    """

    mixed: bool = False
    tables: TableStore = dataclasses.field(default_factory=dict)
    blocks: Blocks = dataclasses.field(default_factory=Blocks)


Workshops: TypeAlias = dict[tuple[LogicalMesh, ShardingOptions, bool], Workshop]
"""Workshops by the mesh, the options, and whether tensors of several sizes cross a boundary."""


@final
class BoundarySolver:
    """An auto-sharding solver of a layer on one mesh, for each pair of layouts at the layer's two boundaries.

    A layout says how mesh axes cut the tensors that cross the boundary to the layer before, or after.

    Attributes:
        layouts: the K layouts that are tried at either boundary; layers that share a `Workshop` have the same.
    """

    def __init__(
        self,
        program: LayerProgram,
        mesh: LogicalMesh,
        options: ShardingOptions,
        workshop: Workshop | None = None,
    ) -> None:
        operators, workshop = program.operators, workshop or Workshop(bool(program.smaller))
        self.program, self.mesh = program, mesh
        self.layouts = pairs_of_layouts(mesh, options, workshop.mixed)
        self._tables = operator_tables(program.facts, mesh, options, workshop.tables)
        self._blocks = workshop.blocks
        self._followers = merge_followers(operators, self._tables, self._blocks)
        self._graph = build_graph(operators, self._tables, self._followers, self._blocks)
        self._costs, self._solver = Costs(mesh, options), NamedSolver(options.solver)
        self._sides = [self._penalties(places) for places in (program.received, program.sent)]
        self._choices: dict[tuple[int, int], Choice] = {}

    @cached_property
    def costs(self) -> NDArray[np.float64]:
        """Returns a layer's least sharding cost for each pair of boundary layouts, shape (K, K), but for a constant.

        Rows are layouts before the layer, columns those after it; the cost of impossible pairs is infinite.
        """
        found = self._solve(self._reduced)
        if np.isfinite(found).any():
            return found
        self._reduced = reduce_graph(self._graph, self._blocks, self._nodes)
        return self._solve(self._reduced)

    def strategies(self, received: int, sent: int) -> tuple[Strategy, ...]:
        """Returns the best sharding strategy of each of a layer's operators, given the layouts at its boundaries.

        Args:
            received: the index of the layout before the layer.
            sent: the index of the layout after it.
        """
        assert np.isfinite(self.costs[received, sent]), "no solution has these layouts at its boundaries"
        choice = self._choice(received, sent)
        return tuple(
            table.strategies[self._followers.strategy(index, choice)] for index, table in enumerate(self._tables)
        )

    def _choice(self, received: int, sent: int) -> dict[int, int]:
        return self._reduced.complete(self._choices[received, sent]())

    def spec(self, place: int, layout: int) -> Spec | None:
        """Returns the mesh axes that a boundary layout has for each dimension of an operator's result.

        It is None where the layout doesn't say, as for a result without a batch dimension.

        Args:
            place: the index of the operator.
            layout: the index of the layout.
        """
        operator = self.program.operators[place]
        wanted = self.layouts[layout][place in self.program.smaller]
        return wanted.nearest(operator.shape, self.program.facts.batch_dims[place], self.mesh.shape)

    @cached_property
    def _nodes(self) -> set[int]:
        return {node for side in self._sides for penalties in side for node in penalties}

    @cached_property
    def _reduced(self) -> Reduced:
        return reduce_graph(self._graph.affordable(self._blocks), self._blocks, self._nodes)

    def _penalties(self, places: tuple[int, ...]) -> list[Penalties]:
        """Returns the penalties of each layout, for the nodes that decide how the results at a boundary are cut."""
        found = []
        for layout in range(len(self.layouts)):
            penalties: Penalties = {}
            for place in places:
                wanted = self.spec(place, layout)
                if wanted is not None:
                    node = self._followers.root[place]
                    penalties[node] = penalties.get(node, 0.0) + self._penalty(place, wanted)
            found.append(penalties)
        return found

    def _penalty(self, place: int, wanted: Spec) -> NDArray[np.float64]:
        """Returns the penalty of each choice of an operator's node: the cost of bringing its result to the wanted spec.

        Where some choice has that spec, all choices that don't are forbidden instead.
        """
        operator, outputs = self.program.operators[place], self._tables[place].outputs
        cost = np.array([0.0 if spec == wanted else np.inf for spec in outputs])
        if not np.isfinite(cost).any():
            matrix = self._costs.matrix(operator.shape, operator.itemsize, outputs, (wanted,))
            cost = np.zeros(len(outputs)) if operator.kind == "parameter" else matrix[:, 0]
        picked: NDArray[np.float64] = cost[self._followers.remap[place]]
        return picked

    def _solve(self, reduced: Reduced) -> NDArray[np.float64]:
        """The cost of each pair of layouts; the choices of what is left of the graph go to `_choices`."""
        try:
            joint = JointCosts(reduced.core, self._reachable())
        except ValueError:
            joint = None
        size = len(self.layouts)
        first = self._first_alike(self.program.received), self._first_alike(self.program.sent)
        found = np.full((size, size), np.inf)
        for received, sent in np.ndindex(size, size):
            like = first[0][received], first[1][sent]
            if like != (received, sent):
                found[received, sent], self._choices[received, sent] = found[like], self._choices[like]
                continue
            sides = self._sides[0][received], self._sides[1][sent]
            penalties = [(node, penalty) for side in sides for node, penalty in side.items()]
            found[received, sent], self._choices[received, sent] = self._pair(reduced.core, joint, penalties)
        return found

    def _reachable(self) -> dict[int, NDArray[np.int64]]:
        """Returns for each node at a boundary its choices that some layout allows."""
        found = {}
        for node in self._nodes:
            sides = [[layout[node] for layout in side if node in layout] for side in self._sides]
            allowed = np.ones(len(self._graph.costs[node]), dtype=np.bool_)
            for penalties in sides:
                if len(penalties) == len(self.layouts):
                    allowed &= np.isfinite(penalties).any(axis=0)
            found[node] = np.flatnonzero(allowed)
        return found

    def _first_alike(self, places: tuple[int, ...]) -> list[int]:
        """Returns for each layout the first one that cuts everything at a boundary in the same way."""
        found: dict[tuple[Spec | None, ...], int] = {}
        return [
            found.setdefault(tuple(self.spec(place, layout) for place in places), layout)
            for layout in range(len(self.layouts))
        ]

    def _pair(
        self, core: CostGraph, joint: JointCosts | None, penalties: list[tuple[int, NDArray[np.float64]]]
    ) -> tuple[float, Choice]:
        """The cost of one pair of layouts, and how to get its choices."""
        if joint is not None:
            with contextlib.suppress(ValueError):
                cost, best = joint.cheapest(penalties)
                return cost, functools.partial(joint.complete, best)
        return self._by_itself(core, penalties)

    def _by_itself(self, core: CostGraph, penalties: list[tuple[int, NDArray[np.float64]]]) -> tuple[float, Choice]:
        """Solves for one pair of layouts, where the rest of the graph hangs together too closely for all at once."""
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
        """Returns the sharding cost of a layer, including that of resharding what crosses its boundaries.

        Args:
            received: the index of the layout of tensors at the boundary before the layer.
            sent: the index of that after it.
        """
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
        self.layouts = ((BoundaryLayout(), BoundaryLayout()),)
        self.costs: NDArray[np.float64] = np.zeros((1, 1))

    def strategies(self, received: int, sent: int) -> tuple[Strategy, ...]:
        """Returns for each operator the sharding strategy that leaves its result whole; the arguments don't matter."""
        ranks = [operator.rank for operator in self.program.operators]
        whole = [Strategy("R", replicated(rank)) for rank in range(max(ranks, default=0) + 1)]
        return tuple(whole[rank] for rank in ranks)

    def spec(self, place: int, layout: int) -> Spec | None:
        """Returns how an operator's result is cut on one device: no mesh axes for any dimension."""
        return replicated(self.program.operators[place].rank)

    def objective(self, received: int, sent: int) -> float:
        """Returns the program's sharding cost on one device: zero, since nothing is sent."""
        return 0.0
