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
from alpa_dejavu.sharding._spec import Spec, axes_of
from alpa_dejavu.sharding.boundary_solve import BoundarySolver, OneDevice
from alpa_dejavu.sharding.layer_sharding import MEMORY, LayerFlows, LayerSharding

Solver = BoundarySolver | OneDevice


def layer_shardings(solver: Solver, received: int, sent: int, levels: Sequence[int]) -> list[LayerSharding]:
    """Returns a layer's sharding at each of some ZeRO levels, given the indices, among the solver's, of the layouts at
    the boundaries before and after it.
    """
    program, shape = solver.program, solver.mesh.shape
    solved = SolvedLayer(program, solver.strategies(received, sent), shape)
    causes, brought = collectives(solved)
    passes = brought if solver.sequence_parallel else {}
    kept = _as_read(solved, [read for read, ahead in passes.items() if len(ahead) == 2])
    causes += [cause for place in program.sent for cause in _leaving(solver, solved, place, sent)]
    alive = [_alive(solved, phase, _as_read(solved, passes)) for phase in ("forward", "backward")]
    moments = undominated_moments(np.concatenate(alive))
    plain = LayerSharding(
        mesh_shape=shape,
        collectives=(),
        memory_parts=np.zeros((len(MEMORY), 2, 2)),
        temporary_moments=moments,
        forward_cuts=_cuts(solved, program.forward_records, solved.summed),
        backward_cuts=_cuts(solved, program.backward_records, solved.summed),
        update_cuts=_cuts(solved, program.update_records, 0),
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
                memory_parts=np.stack([*_staying(solved, kept, divisions, zero), moments[0]]),
                update_cuts=_cuts(solved, program.update_records, _further(solved, divisions)),
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


def _as_read(solved: SolvedLayer, brought: Iterable[tuple[int, Spec]]) -> NDArray[np.int64]:
    """Returns the mesh axes that cut each operator's result in all of its own layout and those it is brought to."""
    cuts = solved.cut.copy()
    for place, layout in brought:
        cuts[place] &= sum(1 << axis for axis in axes_of(layout))
    return cuts


def _staying(solved: SolvedLayer, kept: NDArray[np.int64], divisions: Divisions, zero: int) -> list[FloatArray]:
    """Returns the bytes of each role of `MEMORY` but the temporaries, in parts; `kept` are the mesh axes that cut each
    result while it is kept. What both passes gather in the same way is kept gathered: XLA merges both.
    """
    columns = solved.program.columns
    update = _further(solved, divisions)
    always = update if zero >= 3 else np.zeros_like(update)
    trained, parameters = (columns[role][0].astype(np.intp) for role in ("optimizer", "parameter"))
    further = {"parameter": always[parameters], "optimizer": update[trained], "gradient": always[trained]}
    cuts = {role: kept if role == "activation" else solved.cut for role in MEMORY[:-1]}
    parts = (_parts(solved, columns[role], cut, further.get(role, 0)) for role, cut in cuts.items())
    return [np.bincount(part, share, 4).reshape(2, 2).astype(np.float64) for part, share in parts]


def _further(solved: SolvedLayer, divisions: Divisions) -> NDArray[np.int64]:
    """Returns for each operator, and for none at the end, the mesh axes by which ZeRO divides it further."""
    axes = np.zeros(len(solved.cut), dtype=np.int64)
    for place, further in divisions.items():
        axes[place] = sum(1 << axis for axis in further)
    return axes


def _parts(
    solved: SolvedLayer, values: FloatArray, cuts: NDArray[np.int64], further: NDArray[np.int64] | int = 0
) -> tuple[NDArray[np.int64], FloatArray]:
    """Returns the part, 0 to 3, that each value in a column of `LayerProgram` belongs to, and its bytes on a device,
    given the mesh axes that cut each operator's result.
    """
    places = values[0].astype(np.intp)
    cut = cuts[places] | further
    return 2 * solved.program.batched[places] + (cut & 1), values[1] / solved.ways[cut]


def _alive(solved: SolvedLayer, phase: str, cuts: NDArray[np.int64]) -> FloatArray:
    """Returns the bytes of a pass's values that are alive on one device at each moment, shape (moments, 2, 2), given
    the mesh axes that cut each operator's result.
    """
    values = solved.program.columns[phase]
    first, last = values[2:].astype(np.intp)
    part, share = _parts(solved, values, cuts)
    size = 4 * (last.max(initial=-1) + 2)
    steps = np.bincount(4 * first + part, share, size) - np.bincount(4 * last + 4 + part, share, size)
    return np.asarray(np.cumsum(steps.reshape(-1, 2, 2), axis=0).clip(min=0.0))


def _cuts(solved: SolvedLayer, places: Sequence[int], further: NDArray[np.int64] | int) -> NDArray[np.bool_]:
    """Returns which axes divide the work of some operators, also by partial sums or by ZeRO; none do at place -1."""
    cut = (solved.cut | further)[list(places)]
    return (cut[:, None] >> np.arange(len(solved.mesh_shape)) & 1).astype(np.bool_)


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
