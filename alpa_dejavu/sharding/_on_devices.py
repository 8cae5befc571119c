"""Each device's share of a program whose strategies are chosen: its operators, its collectives and its memory."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.sharding._collectives import Sent, collectives, resharding
from alpa_dejavu.sharding._flow import flow_of_pass
from alpa_dejavu.sharding._layer_program import LayerProgram, Lifetime
from alpa_dejavu.sharding._spec import Shape, Spec, axes_of
from alpa_dejavu.sharding._table import Strategy
from alpa_dejavu.sharding._zero import phased, zero_divisions
from alpa_dejavu.sharding.boundary_solve import BoundarySolver, OneDevice
from alpa_dejavu.sharding.layer_sharding import MEMORY, LayerFlows, LayerSharding

Solver = BoundarySolver | OneDevice


def layer_shardings(solver: Solver, received: int, sent: int, levels: Sequence[int]) -> list[LayerSharding]:
    """Returns a layer's sharding at each of some ZeRO levels, given how the tensors at its boundaries are cut.

    Args:
        solver: the auto-sharding solver of the layer on a mesh.
        received: the index of the layout, among the solver's, at the boundary before the layer.
        sent: the index of the layout at the boundary after it.
        levels: the ZeRO levels.
    """
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
        flows=LayerFlows(functools.partial(flow_of_pass, program, strategies, causes)),
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
        Sent(place, kind, num_bytes, axis, operator.repeats, batched=True, divided=divided, source=place)
        for kind, num_bytes, axis, divided in found
    ]


Value = tuple[int, float, tuple[int, ...]]
"""The operator by which something is cut, its whole bytes, and the axes that divide it besides."""


@final
class Held:
    """A calculator of the bytes that each device holds of a program under chosen sharding strategies on a mesh.

    Bytes come in parts, shape (2, 2): by whether they grow with the micro-batch, and whether mesh axis 0 cuts them.
    """

    def __init__(self, program: LayerProgram, strategies: Sequence[Strategy], mesh_shape: Shape) -> None:
        self.program, self.mesh_shape = program, mesh_shape
        self._strategies = strategies
        self._batch_dims = program.facts.batch_dims

    def whole(self, place: int) -> float:
        """Returns the bytes of an operator's whole result, before it is cut."""
        return float(self.program.operators[place].num_bytes)

    def axes(self, place: int) -> tuple[int, ...]:
        """Returns the mesh axes that cut an operator's result; none for place -1."""
        return axes_of(self._strategies[place].output) if place >= 0 else ()

    def working_axes(self, place: int) -> tuple[int, ...]:
        """Returns the mesh axes that divide an operator's work: those that cut its result or all-reduce it."""
        return (*self.axes(place), *self._strategies[place].all_reduce) if place >= 0 else ()

    def parts(self, values: Iterable[Value]) -> FloatArray:
        """Returns the total bytes of some values on one device, shape (2, 2).

        They are divided by whether they grow with the micro-batch (rows), and whether mesh axis 0 cuts them (columns).

        Args:
            values: for each the index of the operator that says how it is cut, its whole bytes, and the mesh axes that
                divide it further.
        """
        found = np.zeros((2, 2))
        for place, num_bytes, further in values:
            batched, divided, share = self._share(place, num_bytes, further)
            found[batched, divided] += share
        return found

    def alive(self, lifetimes: Sequence[Lifetime]) -> FloatArray:
        """Returns the bytes of values that are alive on one device at each moment, shape (moments, 2, 2).

        The last two indices are whether the bytes grow with the micro-batch, and whether mesh axis 0 cuts them.

        Args:
            lifetimes: for each value its bytes, how it is cut, and its first and last moment.
        """
        steps = np.zeros((max((one.last for one in lifetimes), default=-1) + 2, 2, 2))
        for one in lifetimes:
            batched, divided, share = self._share(one.operator, one.num_bytes, ())
            steps[one.first, batched, divided] += share
            steps[one.last + 1, batched, divided] -= share
        found: FloatArray = np.cumsum(steps, axis=0).clip(min=0.0)
        return found

    def _share(self, place: int, num_bytes: float, further: tuple[int, ...]) -> tuple[int, int, float]:
        axes = (*self.axes(place), *further)
        share = num_bytes
        for axis in axes:
            share /= self.mesh_shape[axis]
        return int(self._batch_dims[place] is not None), int(0 in axes), share


def undominated_moments(alive: FloatArray) -> FloatArray:
    """Returns the moments at which most bytes may be alive if the four parts of all moments are scaled alike.

    The parts are bytes that grow with the micro-batch or don't, and that mesh axis 0 cuts or doesn't, shape
    (moments, 2, 2). The moment of the largest sum comes first.

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
