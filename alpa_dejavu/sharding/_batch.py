"""Finding the batch dimension of every operator."""

import itertools
import math
import operator as operators_of
from collections.abc import Sequence

from alpa_dejavu.sharding._operator import ConvolutionDims, Dims, DotDims, IndexDims, ProgramOperator, free_dims
from alpa_dejavu.sharding._spec import Shape

_SAME_PLACE = ("elementwise", "same_size", "window", "identity", "output", "sibling")


def operator_batch_dims(
    operators: Sequence[ProgramOperator], thorough: bool = False, known_batch: Sequence[tuple[int, int]] = ()
) -> list[int | None]:
    """Finds the batch dimension of the result of each operator of a program; None where it has none.

    The first dimension of the first product (of each pipeline stage) is taken to be the batch; where that product
    multiplies by several weight matrices, one for each of several ways, it is the first that these don't have. From
    there it is carried forward to results and then backward to operands.

    Args:
        operators: the program, each operator after its operands.
        thorough: whether it is carried forward and backward again until no more are found; Alpa's pass does so once.
            Results that the backward pass computes again may be connected to the first product by an operand only.
        known_batch: pairs of an operator and its batch dimension. If there are any, they are where it is carried from,
            not the first product: that may be batched by experts.
    """
    batch: list[int | None] = [None] * len(operators)
    for index, dim in known_batch:
        batch[index] = dim
    waiting = not known_batch
    for index, operator in enumerate(operators):
        if operator.stage_start:
            waiting = not known_batch
        elif operator.kind in ("dot", "convolution") and waiting and operator.rank:
            waiting, batch[index] = False, _first_product_batch(operators, operator)
    unknown = len(batch)
    _carry(operators, batch)
    while thorough and batch.count(None) < unknown:
        unknown = batch.count(None)
        _carry(operators, batch)
    return batch


def _first_product_batch(operators: Sequence[ProgramOperator], operator: ProgramOperator) -> int:
    """Returns the batch dimension of the first product's result: behind those that count weight matrices, if any."""
    dims = operator.attributes
    if not isinstance(dims, DotDims) or not dims.lhs_batch:
        return 0
    lhs, rhs = operator.operands
    left = len(free_dims(operators[lhs].rank, dims.lhs_batch, dims.lhs_contract))
    right = len(free_dims(operators[rhs].rank, dims.rhs_batch, dims.rhs_contract))
    match _is_weight(operators, lhs), _is_weight(operators, rhs):
        case False, True if left:
            return len(dims.lhs_batch)
        case True, False if right:
            return len(dims.lhs_batch) + left
        case _:
            return 0


def _is_weight(operators: Sequence[ProgramOperator], index: int) -> bool:
    """Returns whether an operand is a parameter as it is, maybe in another shape or element type."""
    while operators[index].kind in ("identity", "reshape", "transpose") or operators[index].name == "convert":
        index = operators[index].operands[0]
    return operators[index].kind == "parameter"


def _carry(operators: Sequence[ProgramOperator], batch: list[int | None]) -> None:
    """Carries batch dimensions once through the program, forward and then backward."""
    for index, operator in enumerate(operators):
        if batch[index] is None:
            batch[index] = _forward(operators, operator, batch)
    for index in range(len(operators) - 1, -1, -1):
        dim = batch[index]
        if dim is not None:
            for position, operand in enumerate(operators[index].operands):
                if batch[operand] is None:
                    pairs = _pairs(operators, operators[index], position)
                    batch[operand] = next((before for before, after in pairs if after == dim), None)


def _forward(
    operators: Sequence[ProgramOperator], operator: ProgramOperator, batch: Sequence[int | None]
) -> int | None:
    result = None
    for position, operand in enumerate(operator.operands):
        dim = batch[operand]
        if dim is None:
            continue
        pairs = _pairs(operators, operator, position)
        carried = next((after for before, after in pairs if before == dim), None)
        if carried is not None:
            result = carried
            if operator.kind != "dot" and operator.kind != "convolution":
                break
    return result


def _pairs(operators: Sequence[ProgramOperator], operator: ProgramOperator, position: int) -> list[tuple[int, int]]:
    operand, attributes = operators[operator.operands[position]], operator.attributes
    if operator.kind == "reshape":
        return reshaped_dims(operand.shape, operator.shape)
    if isinstance(attributes, DotDims):
        return _dot_pairs(operand, attributes, position, operators[operator.operands[0]].rank)
    if isinstance(attributes, ConvolutionDims):
        return [
            (attributes.lhs_batch, attributes.out_batch)
            if position == 0
            else (attributes.rhs_out_feature, attributes.out_feature)
        ]
    if isinstance(attributes, IndexDims):
        return list(zip(attributes.operand, attributes.result, strict=True)) if position == 0 else []
    return carried_dims(operator, operand)


def carried_dims(operator: ProgramOperator, operand: ProgramOperator) -> list[tuple[int, int]]:
    """Returns pairs (dimension of an operand, dimension of the result) that an operator leaves as they are which works
    element by element, or moves, resizes, reduces or sorts dimensions; none for others.
    """
    dims = operator.attributes.dims if isinstance(operator.attributes, Dims) else ()
    if operator.kind in _SAME_PLACE:
        if operand.rank != operator.rank:
            return []
        wide = dims if operator.kind == "window" else (1,) * operator.rank
        return [(d, d) for d in range(operand.rank) if operand.shape[d] == operator.shape[d] and wide[d] == 1]
    if operator.kind == "broadcast":
        return list(enumerate(dims))
    if operator.kind == "transpose":
        return [(before, after) for after, before in enumerate(dims)]
    if operator.kind == "reduce" and operand.rank:
        kept = (d for d in range(operand.rank) if d not in dims)
        return [(before, after) for after, before in enumerate(kept)]
    if operator.kind == "sort":
        return [(d, d) for d in range(operand.rank) if d not in dims]
    return []


def _dot_pairs(operand: ProgramOperator, dims: DotDims, position: int, lhs_rank: int) -> list[tuple[int, int]]:
    batch, contract = (dims.lhs_batch, dims.lhs_contract) if position == 0 else (dims.rhs_batch, dims.rhs_contract)
    first = len(batch)
    if position == 1:
        first += len(free_dims(lhs_rank, dims.lhs_batch, dims.lhs_contract))
    return [(d, i) for i, d in enumerate(batch)] + [
        (d, first + i) for i, d in enumerate(free_dims(operand.rank, batch, contract))
    ]


def reshaped_dims(old: Shape, new: Shape) -> list[tuple[int, int]]:
    """Returns pairs (old dimension, new dimension) of a reshape: what cuts one evenly may cut the other.

    The two dimensions begin with the same digit of the elements' row-major numbers.

    >>> reshaped_dims((8, 4, 6), (32, 6))
    [(0, 0), (2, 1)]
    >>> reshaped_dims((1, 1), (1,))
    [(0, 0)]
    """
    if math.prod(old) <= 1:
        return list(zip(range(len(old)), range(len(new)), strict=False))

    def tops(shape: Shape) -> dict[int, int]:
        inner = list(itertools.accumulate(reversed(shape), operators_of.mul, initial=1))[::-1]
        return {inner[d]: d for d in range(len(shape) - 1, -1, -1) if shape[d] != 1}

    before, after = tops(old), tops(new)
    return [(dim, after[top]) for top, dim in sorted(before.items(), reverse=True) if top in after]
