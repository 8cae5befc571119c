"""The rule of operations that work element by element."""

from __future__ import annotations

import dataclasses
import math

from alpa_stock_jax._batch_operation import SAMPLES_COMPARED, SPREAD_BACK, Operation, all_as
from alpa_stock_jax._batch_relation import Relation, same

__all__ = ["ELEMENTWISE", "SEVERAL_SCALES", "elementwise"]

SEVERAL_SCALES = "puts together reductions over the batch that are scaled in several ways"
_KEPT = {"convert_element_type", "copy", "copy_p", "reduce_precision", "real", "imag", "conj", "stop_gradient"}
ELEMENTWISE = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt ceil
    clamp clz complex conj convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1
    floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le lgamma log log1p logistic lt max min mul
    ne neg nextafter not or polygamma population_count pow real reduce_precision regularized_incomplete_beta rem
    round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square
    stop_gradient sub tan tanh xor zeta
""".split()


def elementwise(operation: Operation) -> list[Relation]:
    """The relations of an elementwise operation's results."""
    given = operation.given
    if any(relation.kind == "index" for relation in given):
        return _of_indices(operation)
    if any(relation.kind == "rows" for relation in given):
        return _elementwise_of_rows(operation)
    if any(relation.kind == "reduced" for relation in given):
        return _elementwise_of_sums(operation)
    scale = _linear_scale(operation)
    if scale is None:
        return operation.unknown("uses a number that depends on the batch's size")
    return operation.all(same(scale=scale)) if all(p.alike for p in operation.results) else operation.unknown("grows")


def _elementwise_of_rows(operation: Operation) -> list[Relation]:
    given = operation.given
    if any(relation.kind == "reduced" for relation in given):
        return operation.unknown(SPREAD_BACK)
    befores = {relation.before for relation in given if relation.kind == "rows"}
    scale = _linear_scale(operation)
    if len(befores) != 1:
        return operation.unknown(SAMPLES_COMPARED)
    if scale is None:
        return operation.unknown("isn't linear in a value that is scaled by the batch's size")
    return operation.rows(befores.pop(), scale)


def _elementwise_of_sums(operation: Operation) -> list[Relation]:
    """Of reductions over the batch and of what is the same: linear functions alone keep the relation."""
    name, given = operation.name, operation.given
    reduced = [relation for relation in given if relation.kind == "reduced"]
    if len({relation.op for relation in reduced}) > 1:
        return operation.unknown("mixes reductions of several kinds over the batch")
    first = reduced[0]
    if name in _KEPT and not (name == "convert_element_type" and _loses(operation)):
        return operation.all(first)
    if first.op in ("and", "or"):
        if name == "not":
            return operation.all(dataclasses.replace(first, op="or" if first.op == "and" else "and"))
        if name == first.op and len(reduced) == len(given):
            return operation.all(first)
    if first.op in ("max", "min") and name == first.op and all(r.kind == "reduced" or r.plain for r in given):
        return operation.all(first)
    if first.op == "add":
        if name == "neg":
            return operation.all(first)
        if name in ("add", "sub", "add_any"):
            alike = all_as(first, given, operation.micro_batches)
            return operation.all(first) if alike else operation.unknown(SEVERAL_SCALES)
        if name == "mul" and len(reduced) == 1:
            return operation.all(first.times(math.prod(r.scale for r in given if r.kind == "same")))
        if name == "div" and given[1].kind == "same" and given[1].scale and not _is_whole(operation):
            return operation.all(first.times(1 / given[1].scale))
        if name == "select_n" and given[0].plain and all_as(first, given[1:], operation.micro_batches):
            return operation.all(first)
    if name == "div" and given[1].kind == "reduced":
        return operation.unknown("divides by a sum over the batch")
    return operation.unknown("isn't linear in a reduction over the batch")


def _loses(operation: Operation) -> bool:
    """Whether a conversion isn't linear, as one to whole numbers or booleans isn't."""
    before, after = operation.micro.invars[0].aval.dtype, operation.micro.outvars[0].aval.dtype
    return bool(before.kind not in "biu" and after.kind in "biu") or after.kind == "b" or before.kind == "b"


def _is_whole(operation: Operation) -> bool:
    """Whether the result is a whole number, so that a quotient is rounded."""
    return bool(operation.micro.outvars[0].aval.dtype.kind in "iu")


def _linear_scale(operation: Operation) -> float | None:
    """The factor of an elementwise operation's result, given those of its operands; None where there is none."""
    name = operation.name
    scales = [relation.scale for relation in operation.given if not relation.zero]
    if all(math.isclose(scale, 1.0, rel_tol=1e-6) for scale in scales):
        return 1.0
    if name == "mul":
        return math.prod(scales)
    if name == "div":
        return None if _is_whole(operation) else operation.given[0].scale / operation.given[1].scale
    alike = all(math.isclose(scale, scales[0], rel_tol=1e-6) for scale in scales)
    if name in ("add", "sub", "add_any", "max", "min") and alike:
        return scales[0]
    if name in _KEPT or name in ("neg", "abs"):
        return None if name == "convert_element_type" and _loses(operation) else scales[0]
    if name == "select_n" and operation.given[0].plain:
        rest = [relation.scale for relation in operation.given[1:] if not relation.zero]
        return rest[0] if rest and all(math.isclose(scale, rest[0], rel_tol=1e-6) for scale in rest) else None
    if name == "integer_pow":
        return float(scales[0] ** int(operation.params["y"]))
    return None


def _of_indices(operation: Operation) -> list[Relation]:
    """Keeps what jax does to numbers of samples before it takes these: negative ones are counted from the end."""
    name, given = operation.name, operation.given
    indices = [relation for relation in given if relation.kind == "index"]
    if name == "convert_element_type" and operation.micro.outvars[0].aval.dtype.kind in "iu":
        return operation.all(indices[0])
    if name == "lt" and given[0].kind == "index" and given[1].zero:
        return operation.rows(indices[0].before)
    if name == "add" and len(indices) == 1 and any(_counts_the_batch(operation, n) for n in range(2)):
        return operation.all(indices[0])
    if name == "select_n" and given[0].kind == "rows" and len(indices) == len(given) - 1:
        return operation.all(indices[0])
    return operation.unknown("computes with the numbers of samples within the batch")


def _counts_the_batch(operation: Operation, position: int) -> bool:
    """Whether an operand is the literal number of samples."""
    value = getattr(operation.micro.invars[position], "val", None)
    index = operation.operands[1 - position]
    return value is not None and index.axis is not None and int(value) == index.micro[index.axis]
