"""How deep an operator lies: an element-wise operator follows the deepest of its operands."""

from collections.abc import Sequence

from alpa_dejavu.sharding._operator import Operator

_STEP = {"dot": 1000, "convolution": 1000, "broadcast": -5, "reshape": 0, "identity": 0, "output": 0}
_OTHER_STAGE = 20


def operator_depths(operators: Sequence[Operator], batch_dims: Sequence[int | None]) -> list[int]:
    """The depth of each operator: the longest way to it, products counted a thousandfold.

    A reduce begins anew at 0, and a broadcast goes back a little, since their results are cut less than what else an
    element-wise operator may read. A tensor with a batch dimension that comes from another stage begins at 20.

    Args:
        operators: in order.
        batch_dims: the batch dimension of each, as `operator_batch_dims` finds them.
    """
    users: list[list[Operator]] = [[] for _ in operators]
    for operator in operators:
        for operand in operator.operands:
            users[operand].append(operator)
    depths: list[int] = []
    for index, operator in enumerate(operators):
        if not operator.operands:
            from_stage = (
                operator.kind == "parameter" and batch_dims[index] is not None and not operator.integer
                and bool(users[index]) and all(user.stage_start for user in users[index])
            )
            depths.append(_OTHER_STAGE if from_stage else 0)
        elif operator.kind == "reduce":
            depths.append(0)
        else:
            depths.append(max(depths[operand] for operand in operator.operands) + _STEP.get(operator.kind, 1))
    return depths
