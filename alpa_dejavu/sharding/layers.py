"""Sharding of layers straight from their jaxprs: nothing is lowered or compiled.

Not among the names of `alpa_dejavu.sharding`, since reading jaxprs takes jax.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np
from jax import core

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu.sharding._alike import layer_key
from alpa_dejavu.sharding._build_program import layer_program
from alpa_dejavu.sharding._chain import cheapest_chain, cheapest_chains
from alpa_dejavu.sharding._layer_jaxprs import LayerJaxprs, layers_of
from alpa_dejavu.sharding._layer_program import LayerProgram
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._on_devices import Solver, layer_shardings
from alpa_dejavu.sharding._one_device import OneDevice
from alpa_dejavu.sharding._options import ShardingOptions
from alpa_dejavu.sharding.boundary_solve import BoundarySolver, Workshop, Workshops
from alpa_dejavu.sharding.layer_sharding import COLLECTIVE_KINDS, COLLECTIVE_PHASES, MEMORY, Collective, LayerSharding
from alpa_dejavu.sharding.sharding_table import ShardingTable, StageLayers

__all__ = [
    "COLLECTIVE_KINDS",
    "COLLECTIVE_PHASES",
    "MEMORY",
    "Collective",
    "LayerJaxprs",
    "LayerSharding",
    "ShardingTable",
    "StageLayers",
    "layers_of",
    "shard_layer",
    "sharded_layers",
    "with_batch_dims",
]


def shard_layer(
    layer: LayerJaxprs | Sequence[LayerJaxprs], mesh: LogicalMesh, options: ShardingOptions, zero: int = 0
) -> LayerSharding:
    """Returns how a layer is cut over a mesh when it stands alone.

    Args:
        layer: the layer, or several in a row that are cut as one: a stage.
        mesh: the devices.
        options: as Alpa's pass takes them; `prefer_reduce_scatter` and what belongs to it is said by `zero` instead.
        zero: 0, 2 (gradients and optimizer state divided among data-parallel devices) or 3 (parameters too).

    Raises:
        ValueError: for another ZeRO level.
    """
    program = layer_program([layer] if isinstance(layer, LayerJaxprs) else layer)
    (solver,) = solvers_on([program], mesh, options)
    received, sent = cheapest_chain([solver.costs])
    return layer_shardings(solver, received, sent, [_checked(zero)])[0]


def sharded_layers(
    layers: Sequence[LayerJaxprs],
    meshes: Sequence[LogicalMesh],
    options: Sequence[ShardingOptions],
    zero: Sequence[int] = (),
) -> ShardingTable:
    """All layers on all meshes; layers that are alike are done once.

    What a stage communicates is the sum of what its layers do, each as it does it in that stage.

    Args:
        layers: the L layers of a model (see `layers_of`).
        meshes: M logical meshes.
        options: the options that go with each mesh.
        zero: the ZeRO level that goes with each mesh; by default 0.

    Raises:
        ValueError: for unequal lengths, or a ZeRO level other than 0, 2 and 3.
    """
    levels = [_checked(level) for level in zero] or [0] * len(meshes)
    if not len(meshes) == len(options) == len(levels):
        raise ValueError(
            f"there are {len(meshes)} meshes, {len(options)} options and {len(levels)} ZeRO levels; each mesh has one"
        )
    with collector_paused():
        return _sharded_layers(layers, list(zip(meshes, options, levels, strict=True)))


def _sharded_layers(
    layers: Sequence[LayerJaxprs], configs: Sequence[tuple[LogicalMesh, ShardingOptions, int]]
) -> ShardingTable:
    kinds, programs = kinds_of(layers)
    solvers: dict[tuple[LogicalMesh, ShardingOptions], list[Solver]] = {}
    columns = []
    for mesh, option, level in configs:
        if (mesh, option) not in solvers:
            solvers[mesh, option] = solvers_on(programs, mesh, option)
        columns += stage_layers([solvers[mesh, option][kind] for kind in kinds], [level])
    return ShardingTable.of(columns)


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
    kinds, programs, _ = _read(layers)
    return kinds, programs


def with_batch_dims(layers: Sequence[LayerJaxprs]) -> list[LayerJaxprs]:
    """The layers of a model, with the batch dimensions of what they get from the layers before."""
    return [
        dataclasses.replace(layer, batch_dims=known) for layer, known in zip(layers, _read(layers)[2], strict=True)
    ]


def _read(
    layers: Sequence[LayerJaxprs],
) -> tuple[list[int], list[LayerProgram], list[dict[core.Var, int]]]:
    """Also the batch dimensions of what each layer takes."""
    by_key: dict[Hashable, int] = {}
    numbers: dict[LayerProgram, int] = {}
    programs: list[LayerProgram] = []
    batch: dict[core.Var, int] = {}
    kinds, known = [], []
    for layer in layers:
        batch.update(layer.batch_dims)
        taken = layer.forward.invars
        key = layer_key(layer), tuple(batch.get(var) for var in taken)
        known.append({var: batch[var] for var in taken if var in batch})
        if key not in by_key:
            program = layer_program([layer], known[-1])
            by_key[key] = numbers.setdefault(program, len(numbers))
            programs += [program] * (len(numbers) - len(programs))
        kinds.append(by_key[key])
        program = programs[kinds[-1]]
        for var, place in zip(layer.forward.outvars, program.results, strict=True):
            dim = program.facts.batch_dims[place] if place >= 0 else None
            if isinstance(var, core.Var) and dim is not None:
                batch[var] = dim
    return kinds, programs, known


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


def _checked(zero: int) -> int:
    if zero not in (0, 2, 3):
        raise ValueError(f"the ZeRO level is {zero}, but must be 0, 2 or 3")
    return zero
