"""The bytes that XLA's CPU compiler reads against the order in which they lie in memory, element by element, and the
cache that their lines take.

A product whose operands aren't matrices yet is made one of matrices: the first operand is brought into the order
(batch, free, contracted), the second into (batch, contracted, free). Where that moves an operand's last dimension, the
copy reads a cache line for each element. The copy is fused with the element-wise loop that makes the operand, and
evaluates it again: it then reads all that the loop reads in that order. So do loops over transposed values. Only the
transposed product of two matrices, such as a gradient by weights, costs nothing: it is computed the other way round.
A sum over all but the last dimension reads so, too: one result after the other.

A line is read again for its next element after as many other lines as there are elements in what is now the innermost
dimension. Lines whose distance is a multiple of a power of two share few places of the cache, so they take as much of
it as if all bytes up to that power were read.

References:
    `AlgebraicSimplifier`, `DotDecomposer` and `CpuInstructionFusion` in XLA.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, final

from alpa_dejavu.layers.features.flatten import Step, Value
from alpa_dejavu.layers.features.fusion import Fusion
from alpa_dejavu.layers.features.operator_kinds import ALIASES, flop_of

_LINE_BYTES = 64
_SMALL = 8
"""Operands that are so many times smaller are broadcast, and stay in the cache."""


@final
class Strided:
    """A record of a layer's element-wise loops that tells how many bytes each operation reads against memory order.

    These are the bytes that XLA's CPU compiler doesn't read in the order in which they lie in memory.
    """

    def __init__(self, steps: Sequence[Step], kinds: Sequence[str], fusion: Fusion) -> None:
        self._fusion = fusion
        self._transposed: dict[Value, float] = {}
        self._read: dict[Value, dict[Value, None]] = {}
        self._expensive: set[Value] = set()
        self._computed: set[Value] = set()
        uses = Counter(value for step in steps for value in step.inputs)
        products = (step.outputs[0] for step, kind in zip(steps, kinds, strict=True) if kind == "dot")
        self._turned = {value for value in products if len(value.shape) == 2 and uses[value] == 1}
        for step, kind in zip(steps, kinds, strict=True):
            if step.primitive in ALIASES:
                self._follow(step)
            elif kind in ("elementwise", "layout"):
                self._note(step, kind)

    def reads(self, step: Step, kind: str) -> tuple[float, float]:
        """Returns the bytes that one run of an operation, of a kind such as "dot", reads in another order than that in
        which they lie in memory, and the bytes of cache that their lines take.
        """
        if kind == "dot":
            orders = _orders(step.params, step.inputs[0].shape, step.inputs[1].shape)
            copies = [self._copied(value, order) for value, order in zip(step.inputs[:2], orders, strict=True) if order]
            return sum(num_bytes for num_bytes, _ in copies), max(copies, default=(0.0, 0.0))[1]
        if kind not in ("elementwise", "reduce"):
            return 0.0, 0.0
        transposed = [value for value in dict.fromkeys(step.inputs) if value in self._transposed]
        if transposed:
            return sum(value.num_bytes for value in transposed), max(self._transposed[value] for value in transposed)
        order = _reduced(step) if kind == "reduce" else ()
        return self._copied(step.inputs[0], order) if order else (0.0, 0.0)

    def _follow(self, step: Step) -> None:
        """Notes whether a renamed value is transposed: then its last dimension lies elsewhere."""
        if step.primitive == "transpose":
            order = step.params["permutation"]
            source = step.inputs[0]
            if source.num_bytes and order[-1] != len(order) - 1 and source not in self._turned:
                self._transposed[step.outputs[0]] = _cache_bytes(source, order)
        elif step.inputs and step.inputs[0] in self._transposed:
            self._transposed[step.outputs[0]] = self._transposed[step.inputs[0]]

    def _note(self, step: Step, kind: str) -> None:
        """Notes what the loop that makes a value reads."""
        group = self._fusion.group(step.outputs[0])
        self._computed.update(step.outputs)
        read = self._read.setdefault(group, {})
        read.update(dict.fromkeys(v for v in map(self._fusion.root, step.inputs) if v in self._fusion.in_memory))
        if flop_of(step, kind)[1]:
            self._expensive.add(group)

    def _copied(self, operand: Value, order: Sequence[int]) -> tuple[float, float]:
        """Returns the bytes that a copy of an operand reads, with its dimensions in another order, and the cache that
        their lines take: its loop's, unless the compiler won't evaluate that again.
        """
        value = self._fusion.root(operand)
        group = self._fusion.group(value)
        cache_bytes = _cache_bytes(operand, order)
        if value not in self._computed or group in self._expensive:
            return operand.num_bytes, cache_bytes
        sizes = (other.num_bytes for other in self._read[group])
        large = (num_bytes for num_bytes in sizes if num_bytes * _SMALL >= value.num_bytes)
        return sum(min(num_bytes, value.num_bytes) for num_bytes in large), cache_bytes


def _cache_bytes(value: Value, order: Sequence[int]) -> float:
    """The cache that a value's lines take until they are read again, in this order, the last dimension fastest."""
    if not value.num_bytes:
        return 0.0
    shape = value.shape
    inner = [n for n in order[order.index(len(shape) - 1) + 1 :] if shape[n] > 1]
    itemsize = round(value.num_bytes / value.size)
    apart = [itemsize * math.prod(shape[n + 1 :]) for n in inner]
    distance = math.gcd(*apart) if apart else 0
    per_line = min(distance, max(distance & -distance, _LINE_BYTES))
    return float(per_line * math.prod(shape[n] for n in inner))


def _reduced(step: Step) -> tuple[int, ...]:
    """Returns the order in which a reduction reads the dimensions of what it is given; empty: that of memory."""
    axes, last = step.params.get("axes", ()), len(step.inputs[0].shape) - 1
    if not axes or last in axes or not step.inputs[0].num_bytes:
        return ()
    return (*(n for n in range(last + 1) if n not in axes), *axes)


def _orders(
    params: Mapping[str, Any], left: Sequence[int], right: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the order into which the dimensions of each operand of a product are brought; empty: its last one stays.

    That of a plain product of two matrices always does.
    """
    contracted, batch = params["dimension_numbers"]
    plain = all(len(dims) == 1 for dims in contracted) and len(left) == len(right) == 2
    if plain or not left or not right:
        return (), ()
    leading = all(tuple(dims) == tuple(range(len(dims))) for dims in batch)
    canonical = leading and all(len(dims) == 1 for dims in contracted)
    if canonical and len(left) == len(right) == len(batch[0]) + 2:
        return (), ()
    free_left, free_right = (
        [n for n in range(len(shape)) if n not in contracted[k] and n not in batch[k]]
        for k, shape in enumerate((left, right))
    )
    moves_left = bool(free_left) and len(left) - 1 not in contracted[0]
    moves_right = bool(free_right) and len(right) - 1 in contracted[1]
    return (
        (*batch[0], *free_left, *contracted[0]) if moves_left else (),
        (*batch[1], *contracted[1], *free_right) if moves_right else (),
    )
