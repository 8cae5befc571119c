"""The collectives that a layer's chosen strategies stand for: within operators, and to bring operands to where they are
needed; and ZeRO, which divides among data-parallel devices what all of them would keep and compute.

References:
    Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.sharding._layer_program import LayerProgram
from alpa_dejavu.sharding._planning import ShardingStrategy
from alpa_dejavu.sharding._spec import Shape, Spec, axes_of, divides, num_tiles, replicated
from alpa_dejavu.sharding.layer_sharding import Collective

Divisions = dict[int, tuple[int, ...]]
"""The mesh axes by which ZeRO divides trained parameters further, by the indices of their operators."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class SolvedLayer:
    """A layer's program with the strategy that was chosen for each operator, and the lengths of the mesh's axes."""

    program: LayerProgram
    strategies: Sequence[ShardingStrategy]
    mesh_shape: Shape

    @cached_property
    def cut(self) -> NDArray[np.int64]:
        """Returns the mesh axes that cut each operator's result, and 0 for none at the end: sums of powers of 2.

        A broadcast that is read in parts only, as a mask along the batch, is made and kept in these parts.
        """
        cuts = [strategy.cut for strategy in self.strategies]
        for place, readers in self.program.spread.items():
            rank = self.program.operators[place].rank
            specs = {self.strategies[reader].operand(position, rank) for reader, position in readers}
            if len(specs) == 1:
                cuts[place] |= sum(1 << axis for axis in axes_of(specs.pop()))
        return np.array([*cuts, 0], dtype=np.int64)

    @cached_property
    def summed(self) -> NDArray[np.int64]:
        """Returns in the same way the mesh axes along which each operator's partial sums are added up."""
        return np.array([*(strategy.summed for strategy in self.strategies), 0], dtype=np.int64)

    @cached_property
    def ways(self) -> NDArray[np.int64]:
        """Returns for each set of mesh axes, a sum of powers of 2, among how many devices they divide a tensor."""
        ways = np.ones(1, dtype=np.int64)
        for length in self.mesh_shape:
            ways = np.concatenate([ways, ways * length])
        return ways


@final
@dataclasses.dataclass(frozen=True)
class SentCollective:
    """Equal collectives that one operator of a program causes, with their kind, bytes, mesh axis and number (`count`).

    Bytes are of one collective on one device. `batched` says whether they grow with the micro-batch, and `divided`
    whether mesh axis 0 cuts them. What is sent is the result of the operator `source`, which then has the layout
    `target`, as other operators read it; None: it leaves the layer, and no operator waits for it.
    """

    operator: int
    kind: str
    num_bytes: float
    axis: int
    count: float
    batched: bool = False
    divided: bool = False
    source: int = -1
    target: Spec | None = None


def collectives(solved: SolvedLayer) -> tuple[list[SentCollective], dict[tuple[int, Spec], set[bool]]]:
    """Returns all collectives of a layer: the sums within operators, and the resharding of operands; and for each
    result and layout that it is brought to, whether the forward pass needs that (True), what follows (False), or both.

    A tensor that several operators need resharded in the same way is resharded once.
    """
    sent: list[SentCollective] = []
    brought: dict[tuple[int, Spec], set[bool]] = {}
    program, strategies = solved.program, solved.strategies
    outputs = [strategy.output for strategy in strategies]
    batched, ways = program.batched.tolist(), solved.ways.tolist()
    shared, sums_end = _shared_sums(solved)
    for index, (strategy, reads) in enumerate(zip(strategies, program.reads, strict=True)):
        if strategy.all_reduce and index not in shared:
            operator, last = program.operators[index], sums_end.get(index, index)
            scattered, whole = strategy.cut & strategy.summed, strategy.cut & ~strategy.summed
            kind, num_bytes = "reduce_scatter" if scattered else "all_reduce", operator.num_bytes / ways[whole]
            flags = bool(batched[index]), bool(whole & 1), last, outputs[last]
            sent += [
                SentCollective(index, kind, num_bytes, axis, operator.repeats, *flags) for axis in strategy.all_reduce
            ]
        for position, source, of_same_rank in reads:
            layout = outputs[source]
            if strategy.inputs:
                wanted = strategy.inputs[position]
            else:
                wanted = outputs[index] if of_same_rank else replicated(len(layout))
            if layout is wanted or layout == wanted or not strategies[source].cut:
                continue
            if (source, wanted) not in brought:
                brought[source, wanted] = set()
                sent += brought_to(solved, index, source, wanted, bool(batched[source]), wanted)
            brought[source, wanted].add(index < program.num_forward)
    return sent, brought


def brought_to(
    solved: SolvedLayer, index: int, source: int, wanted: Spec, batched: bool, target: Spec | None
) -> list[SentCollective]:
    """Returns the collectives by which an operator brings another one's result to a layout."""
    num_bytes, repeats = float(solved.program.operators[source].num_bytes), solved.program.operators[index].repeats
    return [
        SentCollective(index, kind, own_bytes, axis, repeats, batched, divided, source, target)
        for kind, own_bytes, axis, divided in resharding(
            num_bytes, solved.strategies[source].output, wanted, solved.mesh_shape
        )
    ]


def _shared_sums(solved: SolvedLayer) -> tuple[set[int], dict[int, int]]:
    """Returns products whose partial sums are added to other products' before any of them is summed over devices; and
    for the product that stands for them all, the addition whose result is summed.
    """
    shared, ends = set(), {}
    reduced = ((index, solved.strategies[index]) for index in solved.program.products)
    partial = {
        index: (strategy.all_reduce, strategy.output, index) for index, strategy in reduced if strategy.all_reduce
    }
    for index, operands in solved.program.sums:
        left, right = (partial.get(operand) for operand in operands)
        if left is not None and right is not None and left[:2] == right[:2] and left != right:
            shared.add(right[2])
            partial[index] = left
            ends[left[2]] = index
    return shared, ends


def resharding(num_bytes: float, source: Spec, target: Spec, mesh_shape: Shape) -> list[tuple[str, float, int, bool]]:
    """Returns the collectives that turn one sharding of a tensor of `num_bytes` into another.

    Each has a kind, its bytes, its mesh axis, and whether mesh axis 0 cuts these bytes. A mesh axis that moves from one
    dimension to another means an all-to-all of what a device holds; one that cuts the tensor no more, an all-gather;
    one that newly cuts it, nothing.

    >>> resharding(64, ((0,), ()), ((), (0,)), (4, 1))
    [('all_to_all', 16.0, 0, True)]
    >>> resharding(64, ((0,), (1,)), ((0,), ()), (2, 4))
    [('all_gather', 32.0, 1, True)]
    """
    before = {axis: dim for dim, axes in enumerate(source) for axis in axes}
    after = {axis: dim for dim, axes in enumerate(target) for axis in axes}
    own_bytes = num_bytes / num_tiles(source, mesh_shape)
    divided = 0 in before
    moves = [("all_to_all", own_bytes, axis, divided) for axis, dim in before.items() if after.get(axis, dim) != dim]
    for axis in before:
        if axis not in after:
            own_bytes *= mesh_shape[axis]
            divided = divided and axis != 0
            moves.append(("all_gather", own_bytes, axis, divided))
    return moves


def zero_divisions(solved: SolvedLayer, level: int) -> Divisions:
    """Returns how a ZeRO level divides trained parameters further than their strategies do: by the mesh axes along
    which their gradients are all-reduced, where some dimension can be cut by them evenly; below level 2 none are.
    """
    divisions = {}
    for trained in solved.program.trained if level >= 2 else ():
        spec, shape = solved.strategies[trained.parameter].output, solved.program.operators[trained.parameter].shape
        summed = dict.fromkeys(axis for index in trained.sums for axis in solved.strategies[index].all_reduce)
        axes = tuple(axis for axis in summed if axis not in axes_of(spec))
        cuts = ((*spec[:dim], (*spec[dim], *axes), *spec[dim + 1 :]) for dim in range(len(shape)))
        if axes and any(divides(cut, shape, solved.mesh_shape) for cut in cuts):
            divisions[trained.parameter] = axes
    return divisions


def phased(
    solved: SolvedLayer, sent: Sequence[SentCollective], divisions: Divisions, level: int
) -> tuple[Collective, ...]:
    """Returns all collectives of a layer with their phases, gradients summed as the ZeRO level has it.

    From level 2 on a gradient that can be divided is reduce-scattered, and the parameter gathered when it is updated;
    at level 3 both happen for each micro-batch, and the parameter is gathered for each pass.
    """
    owner = {index: trained.parameter for trained in solved.program.trained for index in trained.sums}
    totals: dict[tuple[str, float, int, str, bool, bool], float] = {}
    for cause in sent:
        kind, phase = cause.kind, solved.program.phase(cause.operator)
        if cause.kind == "all_reduce" and cause.operator in owner:
            scattered = cause.axis in divisions.get(owner[cause.operator], ())
            kind = "reduce_scatter" if scattered else "all_reduce"
            phase = "backward" if scattered and level >= 3 else "gradient"
        key = kind, cause.num_bytes, cause.axis, phase, cause.batched, cause.divided
        totals[key] = totals.get(key, 0.0) + cause.count
    for parameter, axes in divisions.items():
        spec, ways = solved.strategies[parameter].output, math.prod(solved.mesh_shape[axis] for axis in axes)
        num_bytes = solved.program.operators[parameter].num_bytes / num_tiles(spec, solved.mesh_shape) / ways
        for gathered, axis in enumerate(axes, 1):
            num_bytes *= solved.mesh_shape[axis]
            divided = 0 in (*axes_of(spec), *axes[gathered:])
            for phase in ("update",) if level < 3 else ("forward", "backward"):
                key = "all_gather", num_bytes, axis, phase, False, divided
                totals[key] = totals.get(key, 0.0) + 1.0
    return tuple(Collective(*key[:4], count, *key[4:]) for key, count in totals.items())
