"""Sharding of layers straight from their jaxprs: nothing is lowered or compiled.

Not among the names of `alpa_dejavu.sharding`, since reading jaxprs takes jax.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.problem import NoShardingError
from alpa_dejavu.sharding._build_program import layer_program
from alpa_dejavu.sharding._layer_jaxprs import LayerJaxprs, layer_key, layers_of
from alpa_dejavu.sharding._layer_program import LayerProgram
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._on_devices import Solver, layer_shardings
from alpa_dejavu.sharding._options import ShardingOptions
from alpa_dejavu.sharding._spec import Shape
from alpa_dejavu.sharding.boundary_solve import BoundarySolver, OneDevice, Workshop, Workshops
from alpa_dejavu.sharding.layer_sharding import MEMORY, Collective, LayerSharding, StageLayers

Cut = tuple[int, tuple[int, ...]]
"""The size of a dimension, and the mesh axes that cut it."""
__all__ = ["MEMORY", "Collective", "LayerJaxprs", "LayerSharding", "StageLayers", "layers_of"]


def solvers_on(
    programs: Sequence[LayerProgram],
    mesh: LogicalMesh,
    options: ShardingOptions,
    workshops: Workshops | None = None,
) -> list[Solver]:
    """Returns an auto-sharding solver for each layer's program of operators on one logical mesh.

    Operators that programs have in common are priced once, also by calls that are given the same `workshops`.
    """
    if mesh.num_devices == 1:
        return [OneDevice(program, mesh) for program in programs]
    mixed = any(program.smaller for program in programs)
    shared = {} if workshops is None else workshops
    workshop = shared.setdefault((mesh, options, mixed), Workshop(mixed))
    return [workshop.solver(program, mesh, options) for program in programs]


def lengthened(solvers: Sequence[Solver], mesh: LogicalMesh) -> list[Solver]:
    """Returns solvers on a mesh of longer axes, which cut everything as the given ones do; equal ones stay equal."""
    longer = {solver: solver.lengthened(mesh) for solver in solvers if isinstance(solver, BoundarySolver)}
    return [longer[solver] for solver in solvers if isinstance(solver, BoundarySolver)]


def kinds_of(layers: Sequence[LayerJaxprs]) -> tuple[list[int], list[LayerProgram]]:
    """Returns for each layer the index of its program, and the different programs; alike layers share one."""
    by_key: dict[Hashable, int] = {}
    numbers: dict[LayerProgram, int] = {}
    programs: list[LayerProgram] = []
    batch: dict[core.Var, int] = {}
    kinds = []
    for layer in layers:
        batch.update(layer.batch_dims)
        operands = layer.forward.invars
        key = layer_key(layer), tuple(batch.get(var) for var in operands)
        if key not in by_key:
            program = layer_program([layer], {var: batch[var] for var in operands if var in batch})
            by_key[key] = numbers.setdefault(program, len(numbers))
            programs += [program] * (len(numbers) - len(programs))
        kinds.append(by_key[key])
        program = programs[kinds[-1]]
        for var, place in zip(layer.forward.outvars, program.results, strict=True):
            dim = program.facts.batch_dims[place] if place >= 0 else None
            if isinstance(var, core.Var) and dim is not None:
                batch[var] = dim
    return kinds, programs


def stage_layers(solvers: Sequence[Solver], levels: Sequence[int]) -> list[StageLayers]:
    """Returns the shardings of a model's layers in all stages on one mesh, one object for each ZeRO level.

    In each stage the tensors that cross between two layers are cut such that the stage's layers cost least together.
    """
    return LayoutsOfStages.cheapest(solvers).layers(solvers, levels)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LayoutsOfStages:
    """The layouts at the boundaries of a model's layers in all stages, for each variant of a layer that occurs.

    Attributes:
        solvers: the solver of each layer.
        places: for each variant the number of its layer, and the layouts before and after it.
        of_stages: the variant that each layer has in each stage, as `StageLayers` has it; None if each has one.
    """

    solvers: tuple[Solver, ...]
    places: tuple[tuple[int, int, int], ...]
    of_stages: NDArray[np.signedinteger] | None

    @classmethod
    def cheapest(cls, solvers: Sequence[Solver]) -> LayoutsOfStages:
        """Returns those by which each stage's layers cost least together, given each layer's solver."""
        layouts = cheapest_chains([solver.costs for solver in solvers])
        size, count = len(solvers), int(layouts.max()) + 1
        own = np.arange(size)
        inside = np.nonzero((own[:, None, None] <= own) & (own <= own[:, None]))
        # The variants of the stage that has all layers come first.
        begin, end, n = (np.append(*pair) for pair in zip((0 * own, 0 * own + size - 1, own), inside, strict=True))
        received, sent = layouts[begin, end, n], layouts[begin, end, n + 1]
        _, first, inverse = np.unique((n * count + received) * count + sent, return_index=True, return_inverse=True)
        places = tuple((int(n[place]), int(received[place]), int(sent[place])) for place in np.sort(first))
        if len(places) == size:
            return cls(tuple(solvers), places, None)
        of_stages = np.full((size, size, size), -1, dtype=np.int32)
        of_stages[inside] = first.argsort().argsort()[inverse[size:]]
        return cls(tuple(solvers), places, of_stages)

    @property
    def mesh(self) -> LogicalMesh:
        """Returns the mesh on which the layouts are the cheapest."""
        return self.solvers[0].mesh

    @cached_property
    def cuts(self) -> frozenset[Cut]:
        """Returns the sizes of the dimensions that are cut, with the mesh axes that cut them."""
        unlike = {(self.solvers[n], received, sent) for n, received, sent in self.places}
        return frozenset().union(*(_cuts(*place) for place in unlike))

    def hold_on(self, shape: Shape) -> bool:
        """Returns whether the axes of a mesh of the given lengths, at least as long ones, can cut all as evenly."""
        own = self.mesh.shape
        for size, axes in self.cuts if shape != own else ():
            parts, more = (math.prod([lengths[axis] for axis in axes]) for lengths in (own, shape))
            if size < more or (size % parts == 0 != size % more):
                return False
        return True

    def layers(self, solvers: Sequence[Solver], levels: Sequence[int]) -> list[StageLayers]:
        """Returns the layers' shardings in these layouts, one object for each ZeRO level."""
        variants = []
        for n, received, sent in self.places:
            shardings, key = solvers[n].shardings, (received, sent, tuple(levels))
            if key not in shardings:
                shardings[key] = layer_shardings(solvers[n], *key)
            variants.append(shardings[key])
        numbers = tuple(n for n, _, _ in self.places)
        return [StageLayers(row, numbers, self.of_stages) for row in zip(*variants, strict=True)]


def _cuts(solver: Solver, received: int, sent: int) -> set[Cut]:
    """The sizes that a layer's strategies cut, with the axes that cut them."""
    operators, strategies = solver.program.operators, solver.strategies(received, sent)
    specs = {(operator.shape, strategy.output) for operator, strategy in zip(operators, strategies, strict=True)}
    for operator, strategy in zip(operators, strategies, strict=True):
        if strategy.inputs:
            specs.update(zip([operators[n].shape for n in operator.operands], strategy.inputs, strict=True))
    return {cut for shape, spec in specs for cut in zip(shape, spec, strict=True) if cut[1]}


def cheapest_chains(costs: Sequence[NDArray[np.float64]]) -> NDArray[np.intp]:
    """Finds the cheapest layouts of the tensors between layers for all chains i..j of L layers, shape (L, L, L+1).

    Entry [i, j, n] is the index of the layout, one of K, at the boundary before layer n in the chain i..j; -1 where the
    chain has no such boundary. They are found by dynamic programming.

    Args:
        costs: for each layer the cost of each pair of layouts before (rows) and after it (columns), shape (K, K).

    Raises:
        NoShardingError: if no choice of layouts is possible for one of the chains.

    >>> cheapest_chains([np.array([[1, 0], [2, 3]]), np.array([[0, 5], [3, 3]])])[0]
    array([[ 0,  1, -1],
           [ 0,  0,  0]])
    """
    size, count = len(costs), costs[0].shape[0]
    chains = np.full((size, size, size + 1), -1, dtype=np.intp)
    best = np.zeros((size, count))  # by the layer that a chain begins with, and the layout that it ends in
    froms = []
    for end, cost in enumerate(costs):
        total = best[: end + 1, :, None] + cost
        froms.append(total.argmin(axis=1))
        best[: end + 1] = total.min(axis=1)
        if not np.isfinite(best[: end + 1]).any(axis=1).all():
            raise NoShardingError(
                "no layouts at layers' boundaries go together on this mesh; relax the sharding options"
            )
        chains[: end + 1, end, end + 1] = best[: end + 1].argmin(axis=1)
        for n in range(end, -1, -1):
            begins = np.arange(n + 1)
            chains[begins, end, n] = froms[n][begins, chains[begins, end, n + 1]]
    return chains
