"""Sharding of layers straight from their jaxprs: nothing is lowered or compiled.

Not among the names of `alpa_dejavu.sharding`, since reading jaxprs takes jax.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from jax import core

from alpa_dejavu.sharding._alike import layer_key
from alpa_dejavu.sharding._build_program import layer_program
from alpa_dejavu.sharding._chain import cheapest_chains
from alpa_dejavu.sharding._layer_jaxprs import LayerJaxprs, layers_of
from alpa_dejavu.sharding._layer_program import LayerProgram
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._on_devices import Solver, layer_shardings
from alpa_dejavu.sharding._one_device import OneDevice
from alpa_dejavu.sharding._options import ShardingOptions
from alpa_dejavu.sharding.boundary_solve import BoundarySolver, Workshop, Workshops
from alpa_dejavu.sharding.layer_sharding import MEMORY, Collective, LayerSharding, StageLayers

__all__ = [
    "MEMORY",
    "Collective",
    "LayerJaxprs",
    "LayerSharding",
    "StageLayers",
    "layers_of",
]


def solvers_on(
    programs: Sequence[LayerProgram],
    mesh: LogicalMesh,
    options: ShardingOptions,
    workshops: Workshops | None = None,
) -> list[Solver]:
    """All programs on one mesh; what they have in common is done once.

    What they have in common with other programs, too, where `workshops` has theirs; it takes up that of these.
    """
    if mesh.num_devices == 1:
        return [OneDevice(program, mesh) for program in programs]
    mixed = any(program.smaller for program in programs)
    known = {} if workshops is None else workshops
    workshop = known.setdefault((mesh, options, mixed), Workshop(mixed))
    return [BoundarySolver(program, mesh, options, workshop) for program in programs]


def kinds_of(layers: Sequence[LayerJaxprs]) -> tuple[list[int], list[LayerProgram]]:
    """Returns for each layer which program it is, and all unlike programs."""
    by_key: dict[Hashable, int] = {}
    numbers: dict[LayerProgram, int] = {}
    programs: list[LayerProgram] = []
    batch: dict[core.Var, int] = {}
    kinds = []
    for layer in layers:
        batch.update(layer.batch_dims)
        taken = layer.forward.invars
        key = layer_key(layer), tuple(batch.get(var) for var in taken)
        if key not in by_key:
            program = layer_program([layer], {var: batch[var] for var in taken if var in batch})
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
    """The layers of a model on one mesh at each of some ZeRO levels, given each layer's solver there.

    In each stage the boundaries between layers have the layouts with which its layers cost least together.
    """
    size = len(solvers)
    layouts = cheapest_chains([solver.costs for solver in solvers])
    known: dict[tuple[int, int, int], list[LayerSharding]] = {}
    places: dict[tuple[int, int, int], int] = {}
    of_stages = np.full((size, size, size), -1, dtype=np.intp)
    stages = [(0, size - 1), *((i, j) for i in range(size) for j in range(i, size))]
    for i, j in stages:
        chosen = layouts[i, j].tolist()
        for n in range(i, j + 1):
            place = n, chosen[n], chosen[n + 1]
            of_stages[i, j, n] = places.setdefault(place, len(places))
    variants = []
    for n, received, sent in places:
        key = id(solvers[n]), received, sent
        if key not in known:
            known[key] = layer_shardings(solvers[n], received, sent, levels)
        variants.append(known[key])
    numbers, several = tuple(n for n, _, _ in places), of_stages if len(places) > size else None
    return [StageLayers(row, numbers, several) for row in zip(*variants, strict=True)]
