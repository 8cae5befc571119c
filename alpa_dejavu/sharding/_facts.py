"""The facts about a program that hold on every mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from functools import cached_property

from alpa_dejavu.sharding._batch import operator_batch_dims
from alpa_dejavu.sharding._operator import DotDims, ProgramOperator

_BROADCAST_WITHIN = 6
_STEP = {"dot": 1000, "convolution": 1000, "broadcast": -5, "reshape": 0, "identity": 0, "output": 0}
_OTHER_STAGE = 20
_HAS_LEADER = ("elementwise", "same_size", "window", "reduce", "sort")
_NEAR = 4
"""Operands whose depths differ by no more than this are equally good to follow."""
_numbers: dict[Hashable, int] = {}


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """The surroundings of an operator in its program that its sharding strategies depend on.

    Attributes:
        number: a number that operators share if they, their operands' shapes and their surroundings are alike.
        leaders: the positions of the operands whose cut it may follow, and for each by how much that operand lies
            deeper than those before it: 1, 0 for about as deep, or -1.
        feeds_output: whether the operator's result is an output of the program.
        feeds_broadcast: whether it is an iota, and a broadcast is among the next few operators after it.
        batch_switch: whether it is a reshape between a batched matrix product and a transpose.
        users: how many operators read its result.
        accumulated: whether its result is a gradient that is added to the sum of earlier micro-batches' gradients.
    """

    number: int
    leaders: tuple[tuple[int, tuple[int, ...]], ...]
    feeds_output: bool
    feeds_broadcast: bool
    batch_switch: bool
    users: int
    accumulated: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """The facts about a program's operators that hold on every mesh; operators are referred to by their indices.

    Attributes:
        operators: the program.
        batch_dims: the batch dimension that each operator was found to have, or None.
        depths: the length of the longest path to each operator; a matrix product counts a thousand.
        users: for each operator the operators that read its result.
        replaces: for each operator whose result takes over a parameter's memory, that parameter.
    """

    operators: Sequence[ProgramOperator]
    batch_dims: list[int | None]
    depths: list[int]
    users: list[list[int]]
    replaces: dict[int, int]

    @classmethod
    def of(
        cls, operators: Sequence[ProgramOperator], thorough: bool = False, known_batch: Sequence[tuple[int, int]] = ()
    ) -> Facts:
        """Derives the facts of a program, each of whose operators stands after its operands; `thorough` and
        `known_batch` are as `operator_batch_dims` has them.
        """
        batch_dims = operator_batch_dims(operators, thorough, known_batch)
        users: list[list[int]] = [[] for _ in operators]
        for index, operator in enumerate(operators):
            for operand in dict.fromkeys(operator.operands):
                users[operand].append(index)
        replaces = {op.operands[0]: op.alias for op in operators if op.kind == "output" and op.alias is not None}
        return cls(operators, batch_dims, _depths(operators, batch_dims, users), users, replaces)

    @cached_property
    def batch_sizes(self) -> frozenset[int]:
        """Returns the different sizes of the batch dimensions of all operators' results."""
        pairs = zip(self.operators, self.batch_dims, strict=True)
        return frozenset(operator.shape[dim] for operator, dim in pairs if dim is not None)

    @cached_property
    def surroundings(self) -> list[Surroundings]:
        return [self._surroundings(index, operator) for index, operator in enumerate(self.operators)]

    def _surroundings(self, index: int, operator: ProgramOperator) -> Surroundings:
        operators, users = self.operators, self.users
        dot = operators[operator.operands[0]].attributes if operator.operands else None
        batched = operator.kind == "reshape" and isinstance(dot, DotDims) and bool(dot.lhs_batch)
        around = (
            any(operators[user].kind == "output" for user in users[index]),
            operator.kind == "iota" and _feeds_broadcast(operators, users, index),
            batched and len(users[index]) == 1 and operators[users[index][0]].kind == "transpose",
            len(users[index]),
            _is_accumulated(operators, users, index),
        )
        feeds_output, feeds_broadcast, batch_switch, num_users, accumulated = around
        leaders = self._leaders(operator, self.replaces.get(index))
        key = (
            operator.kind, operator.shape, operator.itemsize, operator.name, operator.attributes, operator.pinned,
            operator.repeats, self.batch_dims[index], leaders,
            tuple((operators[i].kind, operators[i].shape, operators[i].itemsize) for i in operator.operands),
            feeds_output, feeds_broadcast, batch_switch, accumulated,
            num_users == 1 if operator.kind == "reshape" else None,
        )  # fmt: skip
        return Surroundings(_numbers.setdefault(key, len(_numbers)), leaders, *around)

    def _leaders(self, operator: ProgramOperator, alias: int | None) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Returns `Surroundings.leaders`; an operand `alias` whose memory the result takes over is the last of them."""
        if operator.kind not in _HAS_LEADER or len(operator.operands) < 2:
            return ()
        leaders: list[tuple[int, tuple[int, ...]]] = []
        depths: list[int] = []
        for position, operand in enumerate(operator.operands):
            rank = self.operators[operand].rank
            if rank > operator.rank if operator.kind == "reduce" else rank == operator.rank:
                depth = self.depths[operand]
                leaders.append((position, tuple((depth > d + _NEAR) - (depth < d - _NEAR) for d in depths)))
                depths.append(depth)
            if operand == alias:
                break
        return tuple(leaders)


def _depths(
    operators: Sequence[ProgramOperator], batch_dims: Sequence[int | None], users: Sequence[Sequence[int]]
) -> list[int]:
    """Returns the depth of each operator: the longest way to it, products counted a thousandfold.

    An element-wise operator follows the deepest of its operands. A reduce begins anew at 0, and a broadcast goes back a
    little, since their results are cut less than what else an element-wise operator may read. A tensor with a batch
    dimension that comes from another stage begins at 20.
    """
    depths: list[int] = []
    for index, operator in enumerate(operators):
        if not operator.operands:
            from_stage = (
                operator.kind == "parameter"
                and batch_dims[index] is not None
                and not operator.integer
                and bool(users[index])
                and all(operators[user].stage_start for user in users[index])
            )
            depths.append(_OTHER_STAGE if from_stage else 0)
        elif operator.kind == "reduce":
            depths.append(0)
        else:
            depths.append(max(depths[operand] for operand in operator.operands) + _STEP.get(operator.kind, 1))
    return depths


def _feeds_broadcast(operators: Sequence[ProgramOperator], users: list[list[int]], index: int) -> bool:
    """Returns whether a broadcast is found within a few steps to the first reader, and its first reader, and so on."""
    steps = 0
    while users[index] and steps < _BROADCAST_WITHIN:
        index = users[index][0]
        if operators[index].kind == "broadcast":
            return True
        steps += operators[index].kind != "reshape"
    return False


def _is_accumulated(operators: Sequence[ProgramOperator], users: list[list[int]], index: int) -> bool:
    """Returns whether a result is a gradient that is added to what earlier micro-batches left in a parameter."""
    if operators[index].kind not in ("dot", "convolution", "reduce"):
        return False
    if operators[index].gradient:
        return True
    while len(users[index]) == 1:
        user = users[index][0]
        if operators[user].name == "add":
            others = [operand for operand in operators[user].operands if operand != index]
            while others and operators[others[0]].kind == "identity":
                others = list(operators[others[0]].operands)
            return bool(others) and operators[others[0]].kind == "parameter"
        if operators[user].kind not in ("identity", "transpose"):
            return False
        index = user
    return False
