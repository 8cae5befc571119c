"""The operators around a sum that are cut like it: whether all of them could be cut in another way together."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property

from alpa_dejavu.sharding._operator import Dims, ProgramOperator
from alpa_dejavu.sharding._planning import ShardingStrategy
from alpa_dejavu.sharding._spec import Spec


@dataclasses.dataclass(frozen=True, eq=False)
class SolvedProgram:
    """A program's operators, with the strategy chosen for each, and all operators that read its result."""

    operators: Sequence[ProgramOperator]
    strategies: Sequence[ShardingStrategy]
    all_users: Sequence[Sequence[int]]

    @cached_property
    def users(self) -> list[list[int]]:
        """Returns for each operator the operators that read its result, without the outputs of the program."""
        return [[user for user in users if self.operators[user].kind != "output"] for users in self.all_users]

    @cached_property
    def replaces(self) -> dict[int, int]:
        """Maps each operator whose result takes over a parameter's memory to that parameter."""
        return {
            self.behind_markers(operator.operands[0]): operator.alias
            for operator in self.operators
            if operator.kind == "output" and operator.alias is not None
        }

    def behind_markers(self, index: int) -> int:
        """Returns the operator whose result a chain of pipeline markers, ending at `index`, hands on."""
        while self.operators[index].kind == "identity":
            index = self.operators[index].operands[0]
        return index

    def only_output(self, index: int) -> bool:
        """Returns whether a result is only read as an output of the program, maybe via pipeline markers."""
        while len(self.all_users[index]) == 1:
            index = self.all_users[index][0]
            if self.operators[index].kind == "output":
                return True
            if self.operators[index].kind != "identity":
                return False
        return False

    def single_user(self, index: int) -> int | None:
        """Returns the only reader of a result; None if there are several, or if that is an output."""
        users = self.all_users[index]
        return users[0] if len(users) == 1 and self.operators[users[0]].kind != "output" else None

    def users_through_memory(self, index: int) -> list[int]:
        """Returns the readers of a result but outputs; a parameter's readers read its new value, too, next step."""
        return (
            list(dict.fromkeys([*self.users[index], *self.users[self.replaces[index]]]))
            if (index in self.replaces)
            else self.users[index]
        )

    def is_always_whole(self, index: int) -> bool:
        """Returns whether a result is never cut: a constant, a scalar, or a broadcast of either."""
        operator = self.operators[index]
        return (
            operator.kind == "constant"
            or not operator.rank
            or (operator.kind == "broadcast" and self.is_always_whole(operator.operands[0]))
        )


@dataclasses.dataclass
class Region:
    """The operators around an all-reduced sum that are cut like it, and can be cut in another way together with it.

    Attributes:
        members: operators whose result nobody outside of the region needs cut in the old way.
        gather: operators whose result somebody outside of the region needs cut in the old way.
        transposed: the transpose within the region, if there is any; behind it the dimensions are permuted.
        shape: the shape of the all-reduced sum.
        behind: the operators behind that transpose.
    """

    members: set[int]
    gather: list[int]
    transposed: int | None
    shape: tuple[int, ...]
    behind: frozenset[int]

    def cut_of(self, program: SolvedProgram, member: int, cut: Spec) -> Spec:
        """Returns the spec of a member, given that of the all-reduced sum."""
        if program.operators[member].shape == self.shape and member not in self.behind:
            return cut
        assert self.transposed is not None
        dims = program.operators[self.transposed].attributes
        assert isinstance(dims, Dims)
        return tuple(cut[dim] for dim in dims.dims)


def find_region(program: SolvedProgram, start: int) -> Region:
    """Finds the operators around the sum that `start` makes that can be cut in another way together with it: it goes
    from the sum to readers and operands that are cut like it and have its shape, maybe across a transpose.
    """
    walk = _RegionWalk(program, start)
    walk.visit(start)
    boundary = _common_ancestor(program, walk)
    gather: list[int] = []
    for node in boundary:
        if node in walk.readers:
            if all(program.operators[user].kind == "reduce" for user in program.all_users[node]):
                walk.members.add(node)  # gathering what comes out of a reduction costs little
            else:
                gather.append(node)
    region = Region(walk.members, gather, walk.transposed, program.operators[start].shape, walk.behind())
    _gather_after_update(program, region)
    return region


class _RegionWalk:
    def __init__(self, program: SolvedProgram, start: int) -> None:
        self.program = program
        self.spec = program.strategies[start].output
        self.members: set[int] = set()
        self.boundary: list[int] = []
        self.readers: set[int] = set()
        self.seen: set[int] = set()
        self.transposed: int | None = None

    def visit(self, start: int) -> None:
        """Collects the operators that are connected to one through readers and operands that are cut alike; one that
        has a reader cut otherwise, or of another shape, is part of the boundary.
        """
        stack = [start]
        while stack:
            node = stack.pop()
            if node in self.seen:
                continue
            self.seen.add(node)
            users = self.program.users_through_memory(node)
            if not all(self._fits(node, user) for user in users):
                self.boundary.append(node)
                continue
            self.members.add(node)
            self.readers.update(users)
            stack.extend(reversed(self._operands(node)))
            stack.extend(reversed(users))

    def _fits(self, node: int, user: int) -> bool:
        operators = self.program.operators
        reader, shape = operators[user], operators[node].shape
        if reader.kind not in ("elementwise", "identity", "transpose"):
            return False
        if reader.name == "convert" and operators[reader.operands[0]].kind == "parameter":
            return False
        if reader.kind == "transpose" and (self.transposed is None or operators[self.transposed].shape == reader.shape):
            self.transposed, shape = user, reader.shape
        return self.program.strategies[user].output == self.spec and reader.shape == shape

    def _operands(self, node: int) -> list[int]:
        operators = self.program.operators
        return [
            operand
            for operand in operators[node].operands
            if not self.program.is_always_whole(operand)
            and operators[operand].shape == operators[node].shape
            and self.program.strategies[operand].output == self.spec
        ]

    def behind(self) -> frozenset[int]:
        """Returns the collected operators that lie behind a transpose, where dimensions are permuted."""
        if self.transposed is None:
            return frozenset()
        behind, stack = {self.transposed}, [self.transposed]
        while stack:
            node = stack.pop()
            operands = [] if node == self.transposed else self._operands(node)
            for other in [*self.program.users_through_memory(node), *operands]:
                if other in self.members | set(self.boundary) and other not in behind:
                    behind.add(other)
                    stack.append(other)
        return frozenset(behind)


def _common_ancestor(program: SolvedProgram, walk: _RegionWalk) -> list[int]:
    """Returns the boundary; two ends that are computed from one operator alone are cut off at that operator."""
    if len(walk.boundary) != 2:
        return walk.boundary
    path: set[int] = set()
    ancestors = set()
    for end in walk.boundary:
        while len(program.operators[end].operands) == 1:
            operand = program.operators[end].operands[0]
            if operand in walk.members:
                path.add(end)
            end = operand
        ancestors.add(end)
    if len(ancestors) != 1:
        return walk.boundary
    walk.members -= path
    walk.readers |= ancestors
    return list(ancestors)


def _gather_after_update(program: SolvedProgram, region: Region) -> None:
    """Rather than a parameter, which every micro-batch reads, has what replaces it gathered, once it is updated."""
    if len(region.gather) == 1:
        root = program.behind_markers(region.gather[0])
        if program.operators[root].kind == "parameter":
            # Each stage that reads the parameter has it from its own marker, whole as the parameter is.
            region.members -= {root, *(i for i in region.members if program.behind_markers(i) == root)}
            region.gather = [x for x in sorted(region.members) if program.replaces.get(x) == root][:1]
    for node in region.gather:
        for index, operator in enumerate(program.operators):
            if operator.kind == "identity" and program.behind_markers(index) == node:
                region.members.discard(index)
