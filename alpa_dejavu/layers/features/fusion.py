"""Which values of a flat list of steps go through memory, as a compiler that fuses element-wise loops would have it.

A loop that is element-wise, or only moves elements, is computed wherever its result is needed. A result goes through
memory if it leaves the layer, or is made or read by something that isn't such a loop: a product, a gather, a sort. A
reduction fuses with the loops before it, never with those after it.

Loops after a reduction, or a product, read again what was read before it: `in_order` counts that. It isn't counted for
a pass that writes what its backward pass takes, or reads that: compiled as one program, as the steps on a GPU that were
measured, a step writes less and reads more, and both are about equal.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import final

from alpa_dejavu.layers.features.flatten import Step, Value
from alpa_dejavu.layers.features.operator_kinds import ALIASES

_FUSED = frozenset({"elementwise", "layout"})


@final
@dataclasses.dataclass(frozen=True)
class MemoryTraffic:
    """The bytes that an operation reads from and writes to memory; those of them that data parallelism doesn't divide,
    such as parameters; and those that a forward pass keeps for its backward pass, or that are recalled from there for
    the first time.
    """

    read: float = 0.0
    written: float = 0.0
    whole_read: float = 0.0
    whole_written: float = 0.0
    passed: float = 0.0


@final
class Fusion:
    """Predicts which operations of a jaxpr a compiler fuses, and so how many bytes each reads and writes in memory."""

    def __init__(
        self,
        steps: Sequence[Step],
        kinds: Sequence[str],
        inputs: Iterable[Value],
        outputs: Iterable[Value],
        recalled: Iterable[Value] = (),
        kept: Iterable[Value] = (),
        in_order: bool = False,
    ) -> None:
        self._alias: dict[Value, Value] = {}
        self.in_memory: set[Value] = set(inputs)
        for step, kind in zip(steps, kinds, strict=True):
            if step.primitive in ALIASES:
                self._rename(step)
            elif kind not in _FUSED:
                self.in_memory.update(step.outputs)
        for step, kind in zip(steps, kinds, strict=True):
            if step.primitive == "stack":
                self.in_memory.update(step.outputs)
            if kind not in (*_FUSED, "reduce"):
                self.in_memory.update(self.root(value) for value in step.inputs if not value.constant)
        self.in_memory.update(self.root(value) for value in outputs)
        self._parents: dict[Value, Value] = {}
        for step, kind in zip(steps, kinds, strict=True):
            if kind in (*_FUSED, "reduce") and step.primitive not in ALIASES:
                self._join(step)
        self._levels: dict[Value, int] = {}
        self._sources: dict[Value, frozenset[Value]] = {}
        for step, kind in zip(steps, kinds, strict=True):
            if in_order and step.primitive not in ALIASES:
                self._follow(step, kind)
        self._in_order = in_order
        self._pending: dict[object, list[Value]] = {}
        self._seen: set[tuple[object, Value]] = set()
        self._recalled = set(recalled)
        self._kept = {self.root(value) for value in kept}

    def root(self, value: Value) -> Value:
        """Returns the value that a jaxpr's value only renames or reshapes, through several in a row, or else itself."""
        while value in self._alias:
            value = self._alias[value]
        return value

    def group(self, value: Value) -> Value:
        """Returns the value that represents the fused loop in which a value is made, the same for all of that loop."""
        while (parent := self._parents.get(value, value)) is not value:
            self._parents[value] = self._parents.get(parent, parent)
            value = parent
        return value

    def traffic(self, step: Step, kind: str, whole: Collection[Value] = ()) -> MemoryTraffic:
        """Returns the bytes that one run of an operation of a jaxpr, of a kind such as "dot", reads from and writes to
        memory; those of `whole` values, which data parallelism doesn't divide, are also counted separately.

        It must be called once for each operation, in order, since a fused loop reads each value only once.
        """
        if step.primitive in ALIASES:
            return MemoryTraffic()
        written = [value for value in step.outputs if value in self.in_memory]
        if step.primitive == "stack":
            return MemoryTraffic(read=0.0, written=step.inputs[0].num_bytes)
        if kind == "scatter":
            return MemoryTraffic(read=2.0 * step.inputs[-1].num_bytes, written=step.inputs[-1].num_bytes)
        if kind == "gather" or step.primitive in ("dynamic_slice", "slice"):
            return MemoryTraffic(_bytes(written), _bytes(written))
        kernel: object = step
        wanted = self._roots(step)
        if kind in (*_FUSED, "reduce"):
            level = self._level(step)
            kernel = self.group(step.outputs[0]), level
            earlier = [value for value in wanted if self._levels.get(value, 0) < level]
            wanted += itertools.chain.from_iterable(map(self._origins, earlier))
        read = [v for v in dict.fromkeys(wanted) if v in self.in_memory and (kernel, v) not in self._seen]
        self._seen.update((kernel, value) for value in read)
        if self._in_order:
            read = self._pending.pop(kernel, []) + read
            if not written:
                self._pending[kernel] = read
                return MemoryTraffic()
        passed = self._recalled.intersection(read) | self._kept.intersection(written)
        self._recalled.difference_update(read)
        return MemoryTraffic(
            _bytes(read),
            _bytes(written),
            _bytes(value for value in read if value in whole),
            _bytes(value for value in written if value in whole),
            _bytes(passed),
        )

    def _rename(self, step: Step) -> None:
        for source, result in zip(step.inputs, step.outputs, strict=False):
            self._alias[result] = source
        if len(step.inputs) < len(step.outputs):
            self.in_memory.update(step.outputs[len(step.inputs) :])

    def _roots(self, step: Step) -> list[Value]:
        return [self.root(value) for value in step.inputs if not value.constant]

    def _level(self, step: Step) -> int:
        """How many reductions, products and the like an operation waits for, one after the other."""
        return max((self._levels.get(value, 0) for value in self._roots(step)), default=0)

    def _origins(self, value: Value) -> frozenset[Value]:
        """The values in memory that a value is read or computed from."""
        return frozenset([value]) if value in self.in_memory else self._sources.get(value, frozenset())

    def _follow(self, step: Step, kind: str) -> None:
        """Notes what an operation waits for and is computed from. What a later kernel computes again of an operand
        goes through memory instead where fewer bytes do.
        """
        level = self._level(step)
        for value in self._roots(step) if kind in (*_FUSED, "reduce") else ():
            if self._levels.get(value, 0) < level and _bytes(self._origins(value)) > 2 * value.num_bytes:
                self.in_memory.add(value)
        sources = frozenset[Value]().union(*map(self._origins, self._roots(step)))
        for value in step.outputs:
            self._levels[value], self._sources[value] = level + (kind not in _FUSED), sources

    def _join(self, step: Step) -> None:
        for value in step.inputs:
            root = self.root(value)
            if not root.constant and root not in self.in_memory:
                self._parents[self.group(root)] = self.group(step.outputs[0])
        for value in step.outputs[1:]:
            self._parents[self.group(value)] = self.group(step.outputs[0])


def _bytes(values: Iterable[Value]) -> float:
    return sum(value.num_bytes for value in values)
