"""Each device's share of a layer whose strategies are chosen: its operators, its collectives and its memory.

Bytes come in parts, shape (2, 2): by whether they grow with the micro-batch, and whether mesh axis 0 cuts them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.sharding._collectives import (
    Divisions,
    SentCollective,
    SolvedLayer,
    brought_to,
    collectives,
    phased,
    zero_divisions,
)
from alpa_dejavu.sharding._flow import flow_of_pass
from alpa_dejavu.sharding._layer_program import Lifetime
from alpa_dejavu.sharding.boundary_solve import BoundarySolver, OneDevice
from alpa_dejavu.sharding.layer_sharding import MEMORY, LayerFlows, LayerSharding

Solver = BoundarySolver | OneDevice


def layer_shardings(solver: Solver, received: int, sent: int, levels: Sequence[int]) -> list[LayerSharding]:
    """Returns a layer's sharding at each of some ZeRO levels, given the indices, among the solver's, of the layouts at
    the boundaries before and after it.
    """
    program, shape = solver.program, solver.mesh.shape
    solved = SolvedLayer(program, solver.strategies(received, sent), shape)
    causes = collectives(solved)
    causes += [cause for place in program.sent for cause in _leaving(solver, solved, place, sent)]
    alive = [_alive(solved, program.forward_temporaries), _alive(solved, program.backward_temporaries)]
    moments = undominated_moments(np.concatenate(alive))
    plain = LayerSharding(
        mesh_shape=shape,
        collectives=(),
        memory_parts=np.zeros((len(MEMORY), 2, 2)),
        temporary_moments=moments,
        forward_cuts=_cuts(solved, program.forward_records),
        backward_cuts=_cuts(solved, program.backward_records),
        update_cuts=_update_cuts(solved, {}),
        cost=solver.objective(received, sent),
        flows=LayerFlows(functools.partial(flow_of_pass, solved, causes)),
    )
    shardings = []
    for zero in levels:
        divisions = zero_divisions(solved, zero)
        shardings.append(
            dataclasses.replace(
                plain,
                collectives=phased(solved, causes, divisions, zero),
                memory_parts=np.stack([*_staying(solved, divisions, zero), moments[0]]),
                update_cuts=_update_cuts(solved, divisions) if divisions else plain.update_cuts,
            )
        )
    return shardings


def _leaving(solver: Solver, solved: SolvedLayer, place: int, layout: int) -> list[SentCollective]:
    """Returns the collectives that bring a result to the layout in which it leaves."""
    wanted = solver.spec(place, layout)
    is_parameter = solved.program.operators[place].kind == "parameter"
    if is_parameter or wanted is None or wanted == solved.strategies[place].output:
        return []
    return brought_to(solved, place, place, wanted, True, None)


def _staying(solved: SolvedLayer, divisions: Divisions, zero: int) -> list[FloatArray]:
    """Returns the bytes of each role of `MEMORY` but the temporaries, in parts."""
    program = solved.program
    sharded = divisions if zero >= 3 else {}

    def whole(place: int) -> float:
        return float(program.operators[place].num_bytes)

    values = (
        [(place, whole(place), sharded.get(place, ())) for place in program.parameters],
        [(t.parameter, t.state_bytes, divisions.get(t.parameter, ())) for t in program.trained],
        [(t.accumulator, whole(t.accumulator), sharded.get(t.parameter, ())) for t in program.trained],
        [(value.operator, value.num_bytes, ()) for value in program.kept],
        [(value.operator, value.num_bytes, ()) for value in program.inputs],
    )
    return [_parts(solved, of_role) for of_role in values]


def _parts(solved: SolvedLayer, values: Iterable[tuple[int, float, tuple[int, ...]]]) -> FloatArray:
    """Returns a device's bytes of values: the operator that cuts each, its whole bytes, and further axes that do."""
    total = np.zeros((2, 2))
    for place, num_bytes, further in values:
        batched, divided, share = _share(solved, place, num_bytes, further)
        total[batched, divided] += share
    return total


def _alive(solved: SolvedLayer, lifetimes: Sequence[Lifetime]) -> FloatArray:
    """Returns the bytes of values that are alive on one device at each moment, shape (moments, 2, 2)."""
    steps = np.zeros((max((value.last for value in lifetimes), default=-1) + 2, 2, 2))
    for value in lifetimes:
        batched, divided, share = _share(solved, value.operator, value.num_bytes, ())
        steps[value.first, batched, divided] += share
        steps[value.last + 1, batched, divided] -= share
    return np.asarray(np.cumsum(steps, axis=0).clip(min=0.0))


def _share(solved: SolvedLayer, place: int, num_bytes: float, further: tuple[int, ...]) -> tuple[int, int, float]:
    axes = (*solved.axes(place), *further)
    for axis in axes:
        num_bytes /= solved.mesh_shape[axis]
    return int(solved.is_batched(place)), int(0 in axes), num_bytes


def _cuts(solved: SolvedLayer, places: Sequence[int]) -> NDArray[np.bool_]:
    """Returns which axes divide the work of some operators: partial sums are divided too."""
    reduced = [solved.strategies[place].all_reduce if place >= 0 else () for place in places]
    return _marked([(*solved.axes(place), *axes) for place, axes in zip(places, reduced, strict=True)], solved)


def _update_cuts(solved: SolvedLayer, divisions: Divisions) -> NDArray[np.bool_]:
    places = solved.program.update_records
    return _marked([(*solved.axes(place), *divisions.get(place, ())) for place in places], solved)


def _marked(rows: Sequence[tuple[int, ...]], solved: SolvedLayer) -> NDArray[np.bool_]:
    num_axes, numbers = len(solved.mesh_shape), dict[tuple[int, ...], int]()
    places = [numbers.setdefault(axes, len(numbers)) for axes in rows]
    marks = np.array([[axis in axes for axis in range(num_axes)] for axes in numbers], dtype=np.bool_)
    return np.asarray(marks.reshape(-1, num_axes)[places])


def undominated_moments(alive: FloatArray) -> FloatArray:
    """Returns the moments at which most bytes may be alive if the four parts of all moments, shape (moments, 2, 2), are
    scaled alike. The moment of the largest sum comes first.

    >>> undominated_moments(np.array([[[1.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [0.0, 9.0]], [[1.0, 0.0], [0.0, 1.0]]]))
    array([[[0., 0.],
            [0., 9.]],
    <BLANKLINE>
           [[1., 0.],
            [0., 2.]]])
    """
    left = alive.reshape(-1, 4)
    left = left[np.argsort(-left.sum(axis=1), kind="stable")]
    kept = []
    while len(left):
        kept.append(left[0])
        left = left[(left > left[0]).any(axis=1)]
    return np.array(kept).reshape(-1, 2, 2)
