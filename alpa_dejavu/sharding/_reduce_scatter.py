"""Keeping a sum in parts: where an all-reduce may become a reduce-scatter, and an all-gather later or never.

The solver leaves a sum, such as a gradient, whole on every device, and all that is computed from it. What lies between
the sum and the next operator that needs it whole can be cut instead: an optimizer's state and its arithmetic, as in
ZeRO.

References:
    Section 4.2 of the Alpa paper (OSDI 2022), "post-ILP optimization"; ZeRO (SC 2020).
"""

import dataclasses
from collections.abc import Sequence

from alpa_dejavu.sharding._facts import Facts
from alpa_dejavu.sharding._operator import ConvolutionDims, DotDims, ProgramOperator, free_dims
from alpa_dejavu.sharding._options import ShardingOptions
from alpa_dejavu.sharding._planning import ShardingStrategy
from alpa_dejavu.sharding._region import Region, SolvedProgram, find_region
from alpa_dejavu.sharding._spec import Shape, Spec, axes_of, divides, is_replicated

_FEWEST = 5
"""A region of fewer operators is not worth it."""


@dataclasses.dataclass(frozen=True)
class Recut:
    """The results that are cut otherwise than the solver decided, so that all-reduces become reduce-scatters.

    Attributes:
        specs: the new spec of each operator whose result is cut otherwise.
        gather: operators whose result is gathered again, to the cut that the solver decided, for all that read it.
        lone_readers: pairs (operator, reader) where the reader gathers the operator's result for its own use only.
    """

    specs: dict[int, Spec]
    gather: tuple[int, ...]
    lone_readers: tuple[tuple[int, int], ...]


def find_reduce_scatters(
    facts: Facts, strategies: Sequence[ShardingStrategy], mesh_shape: Shape, options: ShardingOptions
) -> Recut:
    """Finds the all-reduces that may become reduce-scatters, and the results that are then cut like their parts.

    Of the options `reduce_scatter_grad_acc_friendly` keeps the all-reduces of accumulated gradients, and
    `reduce_scatter_aggressive_partition` cuts parameters, too.
    """
    operators = facts.operators
    program = SolvedProgram(operators, strategies, facts.users)
    specs: dict[int, Spec] = {}
    gather: list[int] = []
    lone: list[tuple[int, int]] = []
    for index in range(len(operators)):
        if not _is_candidate(program, index, specs):
            continue
        region = find_region(program, index)
        cut = _scattered(operators, index, strategies[index], mesh_shape)
        parameters = sum(operators[i].kind == "parameter" for i in region.members)
        parameters += sum(program.only_output(i) and i in program.replaces for i in region.gather)
        if cut is None or not parameters or len(region.gather) > 1 or len(region.members) < _FEWEST:
            continue
        if options.reduce_scatter_grad_acc_friendly:
            _keep_accumulated(program, region, index)
        if len(axes_of(strategies[index].inputs[0])) == 1 and strategies[index].computation:
            region.members.discard(index)  # a product that is computed several times cannot leave parts behind
        for member in sorted(region.members | set(region.gather)):
            specs[member] = region.cut_of(program, member, cut)
        if not options.reduce_scatter_aggressive_partition:
            gather.extend(region.gather)
        else:
            for point in region.gather:
                _cut_parameter(program, facts.depths, point, specs, lone)
    return Recut(specs, tuple(gather), tuple(lone))


def _is_candidate(program: SolvedProgram, index: int, specs: dict[int, Spec]) -> bool:
    """Returns whether an operator adds up parts, and nothing near it has been cut for another one."""
    operator, strategy = program.operators[index], program.strategies[index]
    if not strategy.summed & ~strategy.cut or index in specs or any(i in specs for i in operator.operands):
        return False
    if operator.kind == "reduce":
        return operator.rank == 1
    if operator.kind == "dot":
        return any(not is_replicated(program.strategies[i].output) for i in operator.operands)
    return operator.kind == "convolution"


def _scattered(
    operators: Sequence[ProgramOperator], index: int, strategy: ShardingStrategy, mesh_shape: Shape
) -> Spec | None:
    """Returns how the sum is cut when each device keeps a part: along the first dimension that is free for it."""
    operator = operators[index]
    spec = list(strategy.output)
    if operator.kind == "reduce":
        spec[0] += strategy.all_reduce
    else:
        dim = next((d for d in _cut_order(operators, operator) if not spec[d]), None)
        if dim is None:
            return None
        spec[dim] = strategy.all_reduce
    result = tuple(spec)
    return result if divides(result, operator.shape, mesh_shape) else None


def _cut_order(operators: Sequence[ProgramOperator], operator: ProgramOperator) -> tuple[int, ...]:
    """Returns the dimensions of a product's result that may be cut, the left operand's first."""
    dims = operator.attributes
    if isinstance(dims, ConvolutionDims):
        return (dims.out_batch, dims.out_feature)
    assert isinstance(dims, DotDims)
    n_batch = len(dims.lhs_batch)
    n_lhs = len(free_dims(operators[operator.operands[0]].rank, dims.lhs_batch, dims.lhs_contract))
    lhs, rhs = range(n_batch, n_batch + n_lhs), range(n_batch + n_lhs, operator.rank)
    return tuple(d for group in (lhs, rhs) for d in group if operator.shape[d] > 1)


def _keep_accumulated(program: SolvedProgram, region: Region, index: int) -> None:
    """Takes a gradient's sum out of a region, down to where it has been added to what was accumulated before; the
    all-reduce then stays, and can be put off to the last micro-batch.
    """
    add = program.single_user(index)
    if add is not None and program.operators[add].kind in ("identity", "transpose"):
        add = program.single_user(add)
    if add is None or program.operators[add].name != "add":
        return
    after = program.single_user(add)
    while after is not None and program.operators[after].name == "add":
        add, after = after, program.single_user(after)
    if after is not None and program.operators[after].kind == "identity":
        after = _last_marker(program, after)  # the stage behind it takes what was accumulated as it was left
    stack = [add if after is None else after]
    while stack:
        current = stack.pop()
        if current in region.members:
            region.members.discard(current)
            stack.extend(program.operators[current].operands)


def _last_marker(program: SolvedProgram, index: int) -> int:
    """Returns the end of a chain of markers that have no other readers; between two stages may be an output, too."""
    while len(program.users[index]) == 1 and program.operators[program.users[index][0]].kind == "identity":
        (index,) = program.users[index]
    return index


def _cut_parameter(
    program: SolvedProgram, depths: Sequence[int], point: int, specs: dict[int, Spec], lone: list[tuple[int, int]]
) -> None:
    """Leaves a new parameter in parts, and the old one too; its first product gathers it for itself.

    Forward and backward pass then each gather the parameter, and it need not be kept whole in between.
    """
    parameter = program.replaces.get(point)
    if parameter is None or not program.only_output(point):
        return
    current = parameter
    specs[current] = specs[point]
    while (
        (user := program.single_user(current)) is not None
        and program.operators[user].shape == (program.operators[point].shape)
        and program.operators[user].kind in ("elementwise", "identity")
    ):
        current = user
        specs[current] = specs[point]
    products = [i for i in program.users[current] if program.operators[i].kind in ("dot", "convolution")]
    if products:
        lone.append((current, min(products, key=lambda i: depths[i])))
