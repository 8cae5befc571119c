"""Each device's share of a program whose strategies are chosen: its operators, its collectives and its memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.sharding._collectives import Sent, collectives, resharding
from alpa_dejavu.sharding._held import Held, undominated_moments
from alpa_dejavu.sharding._one_device import OneDevice
from alpa_dejavu.sharding._spec import Spec
from alpa_dejavu.sharding._zero import phased, zero_divisions
from alpa_dejavu.sharding.boundary_solve import BoundarySolver
from alpa_dejavu.sharding.layer_sharding import MEMORY, LayerSharding

Solver = BoundarySolver | OneDevice


def layer_shardings(solver: Solver, received: int, sent: int, levels: Sequence[int]) -> list[LayerSharding]:
    """A layer's sharding under a pair of boundary layouts, at each of some ZeRO levels."""
    program, shape = solver.program, solver.mesh.shape
    strategies = solver.strategies(received, sent)
    causes = collectives(program.operators, strategies, shape, program.facts.batch_dims)
    causes += [one for place in program.sent for one in _leaving(solver, place, sent, strategies[place].output)]
    held = Held(program, strategies, shape)
    passes = [held.alive(program.forward_temporaries), held.alive(program.backward_temporaries)]
    moments = undominated_moments(np.concatenate(passes))
    plain = LayerSharding(
        mesh_shape=shape,
        collectives=(),
        memory_parts=np.zeros((len(MEMORY), 2, 2)),
        temporary_moments=moments,
        forward_cuts=_cuts(held, program.forward_records),
        backward_cuts=_cuts(held, program.backward_records),
        update_cuts=_update_cuts(held, program.update_records, {}),
        cost=solver.objective(received, sent),
    )
    found = []
    for zero in levels:
        divisions = zero_divisions(program, strategies, shape, zero)
        further = {parameter: division.axes for parameter, division in divisions.items()}
        found.append(
            dataclasses.replace(
                plain,
                collectives=phased(program, strategies, causes, divisions, shape, zero),
                memory_parts=np.stack([*_staying(held, further, zero), moments[0]]),
                update_cuts=_update_cuts(held, program.update_records, further) if further else plain.update_cuts,
            )
        )
    return found


def _staying(held: Held, further: dict[int, tuple[int, ...]], zero: int) -> list[FloatArray]:
    """Returns the bytes of each role of `MEMORY` but the temporaries, in parts."""
    program = held.program
    sharded = further if zero >= 3 else {}
    parameters = [(place, held.whole(place), sharded.get(place, ())) for place in program.parameters]
    states = [(t.parameter, t.state_bytes, further.get(t.parameter, ())) for t in program.trained]
    gradients = [(t.accumulator, held.whole(t.accumulator), sharded.get(t.parameter, ())) for t in program.trained]
    kept, inputs = ([(one.operator, one.num_bytes, ()) for one in row] for row in (program.kept, program.inputs))
    return [held.parts(values) for values in (parameters, states, gradients, kept, inputs)]


def _cuts(held: Held, places: Sequence[int]) -> NDArray[np.bool_]:
    """Returns which axes divide the work of some operators: partial sums are divided too."""
    return _marked([held.working_axes(place) for place in places], len(held.mesh_shape))


def _update_cuts(held: Held, places: Sequence[int], further: dict[int, tuple[int, ...]]) -> NDArray[np.bool_]:
    return _marked([(*held.axes(place), *further.get(place, ())) for place in places], len(held.mesh_shape))


def _marked(rows: Sequence[tuple[int, ...]], num_axes: int) -> NDArray[np.bool_]:
    numbers: dict[tuple[int, ...], int] = {}
    places = [numbers.setdefault(axes, len(numbers)) for axes in rows]
    marks = np.array([[axis in axes for axis in range(num_axes)] for axes in numbers], dtype=np.bool_)
    found: NDArray[np.bool_] = marks.reshape(-1, num_axes)[places]
    return found


def _leaving(solver: Solver, place: int, layout: int, held: Spec) -> list[Sent]:
    """The collectives that bring a result to the layout in which it leaves."""
    operator, wanted = solver.program.operators[place], solver.spec(place, layout)
    if operator.kind == "parameter" or wanted is None or wanted == held:
        return []
    found = resharding(float(operator.num_bytes), held, wanted, solver.mesh.shape)
    return [
        Sent(place, kind, num_bytes, axis, operator.repeats, batched=True, divided=divided)
        for kind, num_bytes, axis, divided in found
    ]
