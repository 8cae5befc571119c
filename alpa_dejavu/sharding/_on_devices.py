"""What each device computes and keeps of a program whose strategies are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from alpa_dejavu._ranges import FloatArray
from alpa_dejavu.sharding._boundary_solve import BoundarySolver
from alpa_dejavu.sharding._collectives import Sent, collectives, resharding
from alpa_dejavu.sharding._layer_program import LayerProgram, Lifetime
from alpa_dejavu.sharding._layer_sharding import LayerSharding
from alpa_dejavu.sharding._spec import Shape, Spec, num_tiles
from alpa_dejavu.sharding._table import Strategy
from alpa_dejavu.sharding._zero import Zero, phased, zero_divisions


def layer_sharding(solver: BoundarySolver, received: int, sent: int, zero: int) -> LayerSharding:
    """A layer's sharding under a pair of boundary layouts and a ZeRO level."""
    program, shape = solver.program, solver.mesh.shape
    strategies = solver.strategies(received, sent)
    causes = collectives(program.operators, strategies, shape)
    causes += [one for place in program.sent for one in _leaving(solver, place, sent, strategies[place].output)]
    divisions = zero_divisions(program, strategies, shape, zero)
    held = _Held(program, strategies, shape)
    ways = {trained.parameter: divisions.get(trained.parameter, Zero((), 1)).ways for trained in program.trained}
    sharded = ways if zero >= 3 else {}
    return LayerSharding(
        mesh_shape=shape,
        collectives=phased(program, strategies, causes, divisions, shape, zero),
        parameter_bytes=held.bytes(program.parameters, sharded),
        optimizer_bytes=sum(
            t.state_bytes / held.tiles(t.parameter) / ways[t.parameter] for t in program.trained
        ),
        gradient_bytes=sum(held.bytes((t.accumulator,)) / sharded.get(t.parameter, 1) for t in program.trained),
        activation_bytes=sum(map(held.share_of, program.kept)),
        input_bytes=sum(map(held.share_of, program.inputs)),
        temporary_bytes=max(held.peak(program.forward_temporaries), held.peak(program.backward_temporaries)),
        forward_shares=held.shares(program.forward_records),
        backward_shares=held.shares(program.backward_records),
        update_shares=1 / np.array([held.tiles(i) * ways.get(i, 1) for i in program.update_records], dtype=np.float64),
        cost=solver.objective(received, sent),
        input_layout=_layout(solver, program.received, received),
        output_layout=_layout(solver, program.sent, sent),
    )


def _layout(solver: BoundarySolver, places: Sequence[int], layout: int) -> Spec | None:
    return solver.spec(places[0], layout) if places else None


def _leaving(solver: BoundarySolver, place: int, layout: int, held: Spec) -> list[Sent]:
    """The collectives that bring a result to the layout in which it leaves."""
    operator, wanted = solver.program.operators[place], solver.spec(place, layout)
    if operator.kind == "parameter" or wanted is None or wanted == held:
        return []
    found = resharding(float(operator.num_bytes), held, wanted, solver.mesh.shape)
    return [Sent(place, kind, num_bytes, axis, operator.repeats) for kind, num_bytes, axis in found]


class _Held:
    """How much of each operator's result one device has."""

    def __init__(self, program: LayerProgram, strategies: Sequence[Strategy], mesh_shape: Shape) -> None:
        self._operators, self._strategies, self._shape = program.operators, strategies, mesh_shape

    def tiles(self, place: int) -> int:
        """Into how many parts a result is cut; 1 for place -1."""
        return num_tiles(self._strategies[place].output, self._shape) if place >= 0 else 1

    def bytes(self, places: Iterable[int], ways: Mapping[int, int] | None = None) -> float:
        """Bytes of some results, divided further by `ways`."""
        further = ways or {}
        return float(sum(self._operators[i].num_bytes / self.tiles(i) / further.get(i, 1) for i in places))

    def share_of(self, value: Lifetime) -> float:
        """Bytes of a value."""
        return value.num_bytes / self.tiles(value.operator)

    def shares(self, places: Sequence[int]) -> FloatArray:
        """Which share of some operators' work a device does: partial sums are divided too."""
        lengths = self._shape
        found = np.ones(len(places))
        for n, place in enumerate(places):
            summed = self._strategies[place].all_reduce if place >= 0 else ()
            found[n] = 1 / (self.tiles(place) * np.prod([lengths[axis] for axis in summed]))
        return found

    def peak(self, lifetimes: Sequence[Lifetime]) -> float:
        """The most bytes that live at a time."""
        if not lifetimes:
            return 0.0
        steps = np.zeros(max(one.last for one in lifetimes) + 2)
        for one in lifetimes:
            num_bytes = self.share_of(one)
            steps[one.first] += num_bytes
            steps[one.last + 1] -= num_bytes
        return float(np.cumsum(steps).max())
