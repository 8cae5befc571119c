"""ZeRO: what data-parallel devices would all keep, and all compute, divided among them.

References:
    Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import final

from alpa_dejavu.sharding._collectives import Sent
from alpa_dejavu.sharding._layer_program import LayerProgram
from alpa_dejavu.sharding._spec import Shape, Spec, axes_of, divides, num_tiles
from alpa_dejavu.sharding._table import Strategy
from alpa_dejavu.sharding.layer_sharding import Collective


@final
@dataclasses.dataclass(frozen=True)
class Zero:
    """A further division of a parameter by ZeRO: the mesh axes that divide its state, and the number of parts."""

    axes: tuple[int, ...]
    ways: int


def zero_divisions(
    program: LayerProgram, strategies: Sequence[Strategy], mesh_shape: Shape, level: int
) -> dict[int, Zero]:
    """Returns how ZeRO divides trained parameters further than their strategies do, by the indices of their operators.

    They are divided by the mesh axes along which their gradients are all-reduced, where they can be divided evenly;
    below level 2 none are.

    Args:
        program: the operators.
        strategies: the sharding strategy that was chosen for each operator.
        mesh_shape: the lengths of the mesh's axes.
        level: the ZeRO level.
    """
    found = {}
    for trained in program.trained if level >= 2 else ():
        spec = strategies[trained.parameter].output
        summed = dict.fromkeys(axis for index in trained.sums for axis in strategies[index].all_reduce)
        axes = tuple(axis for axis in summed if axis not in axes_of(spec))
        if axes and _can_divide(spec, axes, program.operators[trained.parameter].shape, mesh_shape):
            found[trained.parameter] = Zero(axes, math.prod(mesh_shape[axis] for axis in axes))
    return found


def _can_divide(spec: Spec, axes: tuple[int, ...], shape: Shape, mesh_shape: Shape) -> bool:
    """Whether some dimension can be cut by the axes too, evenly."""
    return any(
        divides((*spec[:dim], (*spec[dim], *axes), *spec[dim + 1 :]), shape, mesh_shape) for dim in range(len(shape))
    )


def phased(
    program: LayerProgram,
    strategies: Sequence[Strategy],
    sent: Sequence[Sent],
    divisions: dict[int, Zero],
    mesh_shape: Shape,
    level: int,
) -> tuple[Collective, ...]:
    """Returns all collectives of a layer with their phases, gradients summed as the ZeRO level has it.

    From level 2 on a gradient that can be divided is reduce-scattered, and the parameter gathered when it is updated;
    at level 3 both happen for each micro-batch, and the parameter is gathered for each pass.

    Args:
        program: the layer's operators.
        strategies: the sharding strategy that was chosen for each operator.
        sent: the collectives, each with the operator that causes it.
        divisions: the further division of trained parameters by ZeRO, by the indices of their operators.
        mesh_shape: the lengths of the mesh's axes.
        level: the ZeRO level.
    """
    owner = {index: trained.parameter for trained in program.trained for index in trained.sums}
    totals: dict[Collective, float] = {}

    def count(collective: Collective, times: float) -> None:
        totals[collective] = totals.get(collective, 0.0) + times

    for one in sent:
        division = divisions.get(owner.get(one.operator, -1))
        kind, phase = one.kind, program.phase(one.operator)
        if one.kind == "all_reduce" and one.operator in owner:
            scattered = division is not None and one.axis in division.axes
            kind = "reduce_scatter" if scattered else "all_reduce"
            phase = "backward" if scattered and level >= 3 else "gradient"
        count(Collective(kind, one.num_bytes, one.axis, phase, 1.0, one.batched, one.divided), one.count)
    for parameter, division in divisions.items():
        spec = strategies[parameter].output
        held = program.operators[parameter].num_bytes / num_tiles(spec, mesh_shape) / division.ways
        for gathered, axis in enumerate(division.axes, 1):
            held *= mesh_shape[axis]
            divided = 0 in (*axes_of(spec), *division.axes[gathered:])
            for phase in ("update",) if level < 3 else ("forward", "backward"):
                count(Collective("all_gather", held, axis, phase, divided=divided), 1.0)
    return tuple(dataclasses.replace(key, count=times) for key, times in totals.items())
