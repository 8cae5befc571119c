"""The collectives that a solution stands for: within operators, and to bring operands to where they are needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

from alpa_dejavu.sharding._operator import Operator
from alpa_dejavu.sharding._spec import Shape, Spec, axes_of, num_tiles
from alpa_dejavu.sharding._table import Strategy


@final
@dataclasses.dataclass(frozen=True)
class Sent:
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


def collectives(
    operators: Sequence[Operator], strategies: Sequence[Strategy], mesh_shape: Shape, batch_dims: Sequence[int | None]
) -> list[Sent]:
    """Returns all collectives of a program whose operators are computed by the chosen strategies.

    They are the all-reduces within operators, and the resharding of operands. A tensor that several operators need
    resharded in the same way is resharded once.

    Args:
        operators: the program.
        strategies: the sharding strategy that was chosen for each operator.
        mesh_shape: the lengths of the mesh's axes.
        batch_dims: the batch dimension of each operator's result, None where it has none.
    """
    found: list[Sent] = []
    brought: set[tuple[int, Spec]] = set()
    shared, sums_end = _shared_sums(operators, strategies)
    for index, (operator, strategy) in enumerate(zip(operators, strategies, strict=True)):
        if index not in shared:
            num_bytes = operator.num_bytes / num_tiles(strategy.output, mesh_shape)
            batched, divided = batch_dims[index] is not None, 0 in axes_of(strategy.output)
            last = sums_end.get(index, index)
            found += [
                Sent(
                    index, "all_reduce", num_bytes, axis, operator.repeats, batched, divided, last,
                    strategies[last].output,
                )
                for axis in strategy.all_reduce
            ]  # fmt: skip
        for position, source in enumerate(operator.operands):
            tensor, held = operators[source], strategies[source].output
            if not any(held):
                continue
            wanted = strategy.operand(position, tensor.rank)
            if held != wanted and (source, wanted) not in brought:
                brought.add((source, wanted))
                batched = batch_dims[source] is not None
                found += [
                    Sent(index, kind, num_bytes, axis, operator.repeats, batched, divided, source, wanted)
                    for kind, num_bytes, axis, divided in resharding(float(tensor.num_bytes), held, wanted, mesh_shape)
                ]
    return found


def _shared_sums(operators: Sequence[Operator], strategies: Sequence[Strategy]) -> tuple[set[int], dict[int, int]]:
    """Products whose partial sums are added to other products' before any of them is summed over devices; and for the
    product that stands for them all, the addition whose result is summed.
    """
    found, ends = set(), {}
    partial = {
        index: (strategy.all_reduce, strategy.output, index)
        for index, (operator, strategy) in enumerate(zip(operators, strategies, strict=True))
        if operator.kind == "dot" and strategy.all_reduce
    }
    for index, operator in enumerate(operators):
        if operator.name != "add" or len(operator.operands) != 2:
            continue
        left, right = (partial.get(operand) for operand in operator.operands)
        if left is not None and right is not None and left[:2] == right[:2] and left != right:
            found.add(right[2])
            partial[index] = left
            ends[left[2]] = index
    return found, ends


def resharding(num_bytes: float, source: Spec, target: Spec, mesh_shape: Shape) -> list[tuple[str, float, int, bool]]:
    """Lists the collectives that turn one sharding of a tensor into another.

    Each has a kind, its bytes, its mesh axis, and whether mesh axis 0 cuts these bytes. A mesh axis that moves from one
    dimension to another means an all-to-all of what a device holds; one that cuts the tensor no more, an all-gather;
    one that newly cuts it, nothing. `num_bytes` are those of the whole tensor; `source` and `target` have for each
    dimension the mesh axes that cut it.

    >>> resharding(64, ((0,), ()), ((), (0,)), (4, 1))
    [('all_to_all', 16.0, 0, True)]
    >>> resharding(64, ((0,), (1,)), ((0,), ()), (2, 4))
    [('all_gather', 32.0, 1, True)]
    """
    before = {axis: dim for dim, axes in enumerate(source) for axis in axes}
    after = {axis: dim for dim, axes in enumerate(target) for axis in axes}
    held = num_bytes / num_tiles(source, mesh_shape)
    divided = 0 in before
    found = [("all_to_all", held, axis, divided) for axis, dim in before.items() if after.get(axis, dim) != dim]
    for axis in before:
        if axis not in after:
            held *= mesh_shape[axis]
            divided = divided and axis != 0
            found.append(("all_gather", held, axis, divided))
    return found
