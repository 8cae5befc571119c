"""The data flow of a pass whose strategies are chosen: which operator records and collectives wait for which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from alpa_dejavu.sharding._collectives import Sent
from alpa_dejavu.sharding._layer_program import LayerProgram
from alpa_dejavu.sharding._spec import Spec
from alpa_dejavu.sharding._table import Strategy
from alpa_dejavu.sharding.layer_sharding import Collective, LayerFlow

_Nodes = frozenset[int]
_NOTHING: _Nodes = frozenset()


def flow_of_pass(
    program: LayerProgram, strategies: Sequence[Strategy], sent: Sequence[Sent], phase: str
) -> LayerFlow:
    """Returns what waits for what in one pass of a layer, as its operators read each other's results.

    Only collectives of activations are in it. Parameters that are gathered and gradients that are summed aren't, since
    a stage sends those of all its layers together.

    Args:
        program: the layer's operators.
        strategies: the sharding strategy that was chosen for each operator.
        sent: the collectives that these strategies cause.
        phase: "forward" or "backward".
    """
    gradients = {index for trained in program.trained for index in trained.sums}
    here = [
        one for one in sent
        if one.batched and program.phase(one.operator) == phase
        and not (one.kind == "all_reduce" and one.operator in gradients)
    ]  # fmt: skip
    if not here:
        return LayerFlow((), np.zeros((0, 2), dtype=np.int32))
    groups = {pair: n for n, pair in enumerate(dict.fromkeys((one.kind, one.axis) for one in here))}
    here.sort(key=lambda one: groups[one.kind, one.axis])
    edges = _Tracer(program, strategies, here, phase).edges()
    collectives = [
        Collective(one.kind, one.num_bytes, one.axis, phase, one.count, one.batched, one.divided) for one in here
    ]
    return LayerFlow(tuple(collectives), np.array(sorted(edges), dtype=np.int32).reshape(-1, 2))


@final
class _Tracer:
    """Follows results from operator to operator, by the nodes that must be done before each can be read.

    Several records may share an operator, since what an element-wise function makes of a tensor is cut like it: they
    run one after the other. An operator without a record takes no time.
    """

    def __init__(
        self, program: LayerProgram, strategies: Sequence[Strategy], sent: Sequence[Sent], phase: str
    ) -> None:
        self._program, self._strategies = program, strategies
        self._start = 0 if phase == "forward" else program.num_forward
        self._end = program.num_forward + (0 if phase == "forward" else program.num_backward)
        records = program.forward_records if phase == "forward" else program.backward_records
        self._records: dict[int, list[int]] = {}
        for node, place in enumerate(records):
            self._records.setdefault(place, []).append(node)
        self._sums: dict[int, list[int]] = {}
        self._moves: dict[tuple[int, Spec], list[int]] = {}
        self._leaving: dict[int, list[int]] = {}
        for node, one in enumerate(sent, len(records)):
            if one.target is None:
                self._leaving.setdefault(one.source, []).append(node)
            elif one.target == strategies[one.source].output:
                self._sums.setdefault(self._computed_at(one.source), []).append(node)
            else:
                self._moves.setdefault((one.source, one.target), []).append(node)
        self._done: list[_Nodes] = [_NOTHING] * len(program.operators)
        self._moved: dict[tuple[int, Spec], _Nodes] = {}
        self._edges: set[tuple[int, int]] = set()

    def edges(self) -> set[tuple[int, int]]:
        """Returns all pairs of nodes of which the second waits for the first."""
        for place in range(self._end):
            waits = self._read_by(place) if place >= self._start else _NOTHING
            first, *others = self._records.get(place, ()) or (None,)
            chain = ([] if first is None else [first]) + self._sums.get(place, []) + others
            self._done[place] = self._chained(waits, chain)
            self._chained(self._done[place], self._leaving.get(place, []))
        return self._edges

    def _computed_at(self, place: int) -> int:
        """Returns the operator that has the record of an operator's computation: itself, or the only one to read it, as
        of a gather that is written as several operators.
        """
        at, users = place, self._program.facts.users
        while at not in self._records and len(users[at]) == 1 and users[at][0] < self._end:
            (at,) = users[at]
        return at if at in self._records else place

    def _read_by(self, place: int) -> _Nodes:
        """Returns the nodes that an operator waits for: those of its operands, brought to the layouts it needs."""
        found = _NOTHING
        strategy = self._strategies[place]
        for position, source in enumerate(self._program.operators[place].operands):
            held = self._strategies[source].output
            key = source, strategy.operand(position, self._program.operators[source].rank) if any(held) else held
            if key in self._moves:
                if key not in self._moved:
                    self._moved[key] = self._chained(self._done[source], self._moves[key])
                found |= self._moved[key]
            else:
                found |= self._done[source]
        return found

    def _chained(self, waits: _Nodes, nodes: Sequence[int]) -> _Nodes:
        """Has nodes run one after the other, once others are done; returns what is then to be waited for."""
        for node in nodes:
            self._edges.update((one, node) for one in waits)
            waits = frozenset((node,))
        return waits
