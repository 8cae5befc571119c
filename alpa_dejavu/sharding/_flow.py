"""The data flow of a pass whose strategies are chosen: which operator records and collectives wait for which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from alpa_dejavu.layers.features.flatten import Step, Value
from alpa_dejavu.layers.features.operator_kinds import ALIASES
from alpa_dejavu.sharding._collectives import SentCollective, SolvedLayer
from alpa_dejavu.sharding._from_jaxpr import RENAMES
from alpa_dejavu.sharding._spec import Spec
from alpa_dejavu.sharding.layer_sharding import Collective, LayerFlow

_Nodes = frozenset[int]
_NOTHING: _Nodes = frozenset()


def flow_of_pass(solved: SolvedLayer, sent: Sequence[SentCollective], phase: str) -> LayerFlow:
    """Returns what waits for what in one pass ("forward" or "backward") of a layer, as its operations read each other's
    results.

    Only collectives of activations are in it. Parameters that are gathered and gradients that are summed aren't, since
    a stage sends those of all its layers together.
    """
    program = solved.program
    gradients = {index for trained in program.trained for index in trained.sums}
    causes = [
        cause
        for cause in sent
        if cause.batched
        and program.phase(cause.operator) == phase
        and not (cause.kind == "all_reduce" and cause.operator in gradients)
    ]
    if not causes:
        return LayerFlow((), np.zeros((0, 2), dtype=np.int32))
    groups = {pair: n for n, pair in enumerate(dict.fromkeys((cause.kind, cause.axis) for cause in causes))}
    causes.sort(key=lambda cause: groups[cause.kind, cause.axis])
    layouts = tuple([(strategy.output, strategy.inputs) for strategy in solved.strategies])
    key = phase, layouts, tuple([(cause.operator, cause.source, cause.target) for cause in causes])
    if key not in program.edges:  # meshes of other lengths often divide a layer in the same way
        pairs = sorted(_Tracer(solved, causes, phase).edges(), key=lambda pair: pair[::-1])
        program.edges[key] = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    collectives = [Collective(c.kind, c.num_bytes, c.axis, phase, c.count, c.batched, c.divided) for c in causes]
    return LayerFlow(tuple(collectives), program.edges[key])


@final
class _Tracer:
    """Follows values from operation to operation, by the nodes that must be done before each can be read.

    Operations that only rename or reshape have no node, and take no time.
    """

    def __init__(self, solved: SolvedLayer, causes: Sequence[SentCollective], phase: str) -> None:
        program = solved.program
        self._operators, self._strategies = program.operators, solved.strategies
        ahead = phase == "forward"
        self._pass = program.forward_steps if ahead else program.backward_steps
        self._sums: dict[int, list[int]] = {}
        self._moves: dict[tuple[int, Spec], list[int]] = {}
        self._leaving: dict[int, list[int]] = {}
        for node, cause in enumerate(causes, len(program.forward_records if ahead else program.backward_records)):
            if cause.target is None:
                self._leaving.setdefault(cause.source, []).append(node)
            elif cause.target == solved.strategies[cause.source].output:
                self._sums.setdefault(cause.source, []).append(node)
            else:
                self._moves.setdefault((cause.source, cause.target), []).append(node)
        self._done: dict[Value, _Nodes] = {}
        self._moved: dict[tuple[int, Spec], _Nodes] = {}
        self._edges: set[tuple[int, int]] = set()

    def edges(self) -> set[tuple[int, int]]:
        """Returns all pairs of nodes of which the second waits for the first."""
        record = 0
        starts = self._pass.starts
        for step, start, end in zip(self._pass.steps, starts, starts[1:], strict=False):
            if step.primitive in RENAMES:
                pairs = zip(step.inputs, step.outputs, strict=False)
                self._done.update((result, self._done.get(source, _NOTHING)) for source, result in pairs)
                continue
            chain = []
            if step.primitive not in ALIASES and step.outputs:
                chain.append(record)
                record += 1
            waits = self._waits(step, range(start, end))
            done = self._chained(waits, chain + [node for at in range(start, end) for node in self._sums.get(at, ())])
            self._done.update((result, done) for result in step.outputs)
        for place, nodes in self._leaving.items():
            makers = [done for value, done in self._done.items() if self._pass.places.get(value) == place]
            self._chained(_NOTHING.union(*makers), nodes)
        return self._edges

    def _waits(self, step: Step, written: range) -> _Nodes:
        """Returns the nodes that an operation, for which the operators `written` stand, waits for: those of its
        operands, brought to the layouts it needs.
        """
        read = waits = _NOTHING.union(*(self._done.get(value, _NOTHING) for value in step.inputs))
        for at in written:
            strategy = self._strategies[at]
            for position, source in enumerate(self._operators[at].operands):
                if not any(self._strategies[source].output):
                    continue
                key = source, strategy.operand(position, self._operators[source].rank)
                if key in self._moves:
                    if key not in self._moved:
                        sources = [v for v in step.inputs if self._pass.places.get(v) == source]
                        makers = _NOTHING.union(*(self._done.get(value, _NOTHING) for value in sources))
                        self._moved[key] = self._chained(makers if sources else read, self._moves[key])
                    waits |= self._moved[key]
        return waits

    def _chained(self, waits: _Nodes, nodes: Sequence[int]) -> _Nodes:
        """Has nodes run one after the other, once others are done; returns what is then to be waited for."""
        for node in nodes:
            self._edges.update((before, node) for before in waits)
            waits = frozenset((node,))
        return waits
