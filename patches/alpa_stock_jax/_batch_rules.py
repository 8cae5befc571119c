"""What each operation of jax makes of the relations between a micro-batch's values and the batch's.

A rule takes an operation, whose operands' relations are known, and gives those of its results. An operation without a
rule, and one whose result has no relation that can be named, gives "unknown" with the reason.

References: the rules of shapes are those of the operations' own (jax's `lax`); that a linear function of a sum is the
sum of the function is what the rules of "reduced" rest on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from alpa_stock_jax._batch_elementwise import ELEMENTWISE, SEVERAL_SCALES, elementwise
from alpa_stock_jax._batch_operation import SAMPLES_COMPARED, SPREAD_BACK, Operation, all_as, mapped
from alpa_stock_jax._batch_relation import Pair, Relation, same, unknown

__all__ = ["relate"]


def relate(operation: Operation) -> list[Relation]:
    """The relations of an operation's results."""
    for relation in operation.given:
        if relation.kind == "unknown":
            return operation.all(unknown(relation.reason, "other"))
    alike = all(pair.alike for pair in operation.results)
    if alike and all(relation.plain for relation in operation.given):
        keeps_zero = operation.name in _ZERO_TO_ZERO and all(relation.zero for relation in operation.given)
        return operation.all(same(zero=keeps_zero))
    rule = _RULES.get(operation.name)
    return rule(operation) if rule else operation.unknown("isn't followed over micro-batches")


def _broadcast(operation: Operation) -> list[Relation]:
    (relation, *_), (pair, *_), (result,) = operation.given, operation.operands, operation.results
    dimensions = operation.params["broadcast_dimensions"]
    if relation.kind == "same":
        if result.alike:
            return operation.all(relation)
        axis = result.axis
        if axis is None:
            return operation.unknown(SAMPLES_COMPARED)
        return operation.rows(math.prod(result.micro[:axis]), relation.scale)
    if relation.kind == "reduced":
        if result.alike:
            return operation.all(relation)
        return operation.unknown(SPREAD_BACK)
    before = mapped(relation.before, pair, result.micro, dimensions)
    made = operation.rows(before, relation.scale)
    return _still_indices(made, relation, operation)


def _still_indices(made: list[Relation], relation: Relation, operation: Operation) -> list[Relation]:
    """Where the operand was numbers of samples, so is the result."""
    if relation.kind != "index" or made[0].kind != "rows":
        return made
    return operation.all(Relation("index", before=made[0].before, columns=relation.columns))


def _reshape(operation: Operation) -> list[Relation]:
    relation, result = operation.given[0], operation.results[0]
    if relation.kind in ("same", "reduced"):
        return operation.all(relation) if result.alike else operation.unknown("mixes the batch with other dimensions")
    return _still_indices(operation.rows(relation.before, relation.scale), relation, operation)


def _transpose(operation: Operation) -> list[Relation]:
    relation, pair, result = operation.given[0], operation.operands[0], operation.results[0]
    if relation.kind in ("same", "reduced"):
        return operation.all(relation)
    permutation = list(operation.params["permutation"])
    positions = [permutation.index(axis) for axis in range(len(permutation))]
    made = operation.rows(mapped(relation.before, pair, result.micro, positions), relation.scale)
    return _still_indices(made, relation, operation)


def _reduction(op: str | None) -> Callable[[Operation], list[Relation]]:
    """The rule of a reduction over given axes; `op` joins the parts of one over the batch, if it can be joined."""

    def rule(operation: Operation) -> list[Relation]:
        relation, pair = operation.given[0], operation.operands[0]
        axes = operation.params["axes"]
        linear = op == "add" or (op in ("max", "min") and relation.scale > 0)
        if not linear and not math.isclose(relation.scale, 1.0, rel_tol=1e-6):
            return operation.unknown("isn't linear in a value that is scaled by the batch's size")
        if relation.kind == "index":
            return operation.unknown("computes with the numbers of samples within the batch")
        if relation.kind == "same":
            return operation.all(relation)
        if relation.kind == "reduced":
            if op == relation.op:
                return operation.all(relation)
            return operation.unknown("isn't linear in a reduction over the batch")
        if pair.axis not in axes:
            kept = [axis for axis in range(len(pair.micro)) if axis not in axes]
            positions = [kept.index(axis) if axis in kept else -1 for axis in range(len(pair.micro))]
            before = mapped(relation.before, pair, operation.results[0].micro, positions)
            return operation.rows(before, relation.scale)
        if op is None:
            return operation.unknown("reduces the batch in a way that can't be put together from micro-batches")
        return operation.all(Relation("reduced", scale=relation.scale, op=op, reason=operation.place))

    return rule


def _along(parameter: str) -> Callable[[Operation], list[Relation]]:
    """The rule of what works along one dimension: sorting, cumulative sums, top-k."""

    def rule(operation: Operation) -> list[Relation]:
        if any(relation.kind in ("reduced", "index") for relation in operation.given):
            return operation.unknown("isn't linear in a reduction over the batch")
        rows = [(r, p) for r, p in zip(operation.given, operation.operands, strict=True) if r.kind == "rows"]
        befores = {relation.before for relation, _ in rows}
        dimension = operation.params.get(parameter, len(operation.operands[0].micro) - 1)
        dimension = dimension % len(operation.operands[0].micro)
        if len(befores) != 1 or any(pair.axis == dimension for _, pair in rows):
            return operation.unknown("goes along the batch")
        if any(not math.isclose(r.scale, 1.0, rel_tol=1e-6) for r in operation.given):
            return operation.unknown("isn't linear in a value that is scaled by the batch's size")
        pair = rows[0][1]
        positions = range(len(pair.micro))
        return operation.rows(mapped(rows[0][0].before, pair, operation.results[0].micro, positions))

    return rule


def _product(operation: Operation) -> list[Relation]:
    (left_contracted, right_contracted), (left_batch, right_batch) = operation.params["dimension_numbers"]
    left, right = operation.given
    if "index" in (left.kind, right.kind):
        return operation.unknown("computes with the numbers of samples within the batch")
    scale = left.scale * right.scale
    kinds = {left.kind, right.kind}
    if kinds == {"same"}:
        return operation.all(same(scale=scale))
    if kinds == {"reduced", "same"}:
        factor = left if left.kind == "reduced" else right
        if factor.is_sum:
            return operation.all(dataclasses.replace(factor, scale=scale))
    if "reduced" in kinds:
        return operation.unknown("multiplies reductions over the batch, or puts one back into its samples")
    pairs = operation.operands
    contracted = [
        relation.kind == "rows" and pair.axis in axes
        for relation, pair, axes in zip((left, right), pairs, (left_contracted, right_contracted), strict=True)
    ]
    if all(contracted):
        paired = list(left_contracted).index(pairs[0].axis) == list(right_contracted).index(pairs[1].axis)
        outers = [pair.outer(relation.before) for pair, relation in zip(pairs, (left, right), strict=True)]
        if paired and outers[0] == outers[1] is not None:
            return operation.all(Relation("reduced", scale=scale))
    if any(contracted):
        return operation.unknown(SAMPLES_COMPARED)
    places = (
        _product_positions(pairs[0], left_contracted, left_batch, None),
        _product_positions(pairs[1], right_contracted, right_batch, pairs[0]),
    )
    befores = {
        mapped(relation.before, pair, operation.results[0].micro, positions)
        for relation, pair, positions in zip((left, right), pairs, places, strict=True) if relation.kind == "rows"
    }
    if len(befores) != 1:
        return operation.unknown(SAMPLES_COMPARED)
    return operation.rows(befores.pop(), scale)


def _product_positions(
    pair: Pair, contracted: Sequence[int], batch: Sequence[int], left: Pair | None
) -> list[int]:
    """Where each dimension of a product's operand is in the result: batch dimensions, then the left's, the right's."""
    positions = [-1] * len(pair.micro)
    for place, axis in enumerate(batch):
        positions[axis] = place
    begin = len(batch)
    if left is not None:
        begin += len(left.micro) - len(batch) - len(contracted)
    free = [axis for axis in range(len(pair.micro)) if axis not in contracted and axis not in batch]
    for place, axis in enumerate(free):
        positions[axis] = begin + place
    return positions


def _convolution(operation: Operation) -> list[Relation]:
    image, kernel = operation.given
    numbers, params, pair = operation.params["dimension_numbers"], operation.params, operation.operands[0]
    if image.kind == "same" == kernel.kind:
        return operation.all(same(scale=image.scale * kernel.scale))
    alone = image.kind == "rows" and pair.alone(image.before, operation.micro_batch)
    if not alone or kernel.kind != "same" or pair.axis != numbers.lhs_spec[0] or params["batch_group_count"] != 1:
        return operation.unknown("mixes samples of the batch")
    axis = numbers.out_spec[0]
    return operation.rows(math.prod(operation.results[0].micro[:axis]), image.scale * kernel.scale)


def _gather(operation: Operation) -> list[Relation]:
    operand, indices = operation.given
    (taken, listed), (result,) = operation.operands, operation.results
    numbers, sizes = operation.params["dimension_numbers"], operation.params["slice_sizes"]
    listing = [axis for axis in range(len(result.micro)) if axis not in numbers.offset_dims]
    sliced = [axis for axis in range(len(taken.micro)) if axis not in numbers.collapsed_slice_dims]
    if operand.kind == "reduced" or indices.kind == "reduced":
        return operation.unknown("isn't linear in a reduction over the batch")
    if operand.kind == "index" or (indices.kind == "rows" and not math.isclose(indices.scale, 1.0)):
        return operation.unknown("computes with the numbers of samples within the batch")
    if operand.kind == "same" and indices.kind == "rows":
        before = mapped(indices.before, listed, result.micro, [*listing, -1])
        return operation.rows(before, operand.scale)
    if operand.kind == "rows" and indices.kind == "same":
        axis = taken.axis
        whole = axis is not None and sizes[axis] == taken.micro[axis]
        if not whole or axis not in sliced:
            return operation.unknown("takes some samples of the batch")
        positions = [numbers.offset_dims[sliced.index(n)] if n in sliced else -1 for n in range(len(taken.micro))]
        return operation.rows(mapped(operand.before, taken, result.micro, positions), operand.scale)
    if operand.kind == "rows" and indices.kind == "index" and taken.alone(operand.before, taken.micro[taken.axis or 0]):
        columns = indices.columns if indices.columns is not None else (0,)
        named = [numbers.start_index_map[column] for column in columns]
        if named == [taken.axis] and sizes[taken.axis] == 1 and taken.axis in numbers.collapsed_slice_dims:
            before = mapped(indices.before, listed, result.micro, [*listing, -1])
            return operation.rows(before, operand.scale)
    return operation.unknown("takes samples of the batch by their numbers")


def _iota(operation: Operation) -> list[Relation]:
    result, dimension = operation.results[0], operation.params["dimension"]
    axis = result.axis
    if axis is None:
        return operation.unknown(SAMPLES_COMPARED)
    made = operation.rows(math.prod(result.micro[:axis]))
    if axis == dimension and made[0].kind == "rows":
        return operation.all(Relation("index", before=made[0].before))
    return made


def _concatenate(operation: Operation) -> list[Relation]:
    given, pairs, result = operation.given, operation.operands, operation.results[0]
    dimension, kinds = operation.params["dimension"], {relation.kind for relation in operation.given}
    if kinds == {"same"}:
        scales = {relation.scale for relation in given if not relation.zero}
        return operation.all(same(scale=scales.pop())) if len(scales) == 1 else operation.unknown(SEVERAL_SCALES)
    if kinds <= {"same", "reduced"}:
        first = next(relation for relation in given if relation.kind == "reduced")
        alike = all(relation.kind == "reduced" and relation.op == first.op for relation in given)
        if first.op == "add":
            alike = all_as(first, given, operation.micro_batches)
        return operation.all(first) if alike else operation.unknown(SEVERAL_SCALES)
    if "reduced" in kinds or "same" in kinds:
        return operation.unknown("puts something else between the samples of the batch")
    axes, befores = {pair.axis for pair in pairs}, set()
    if len(axes) != 1 or dimension in axes or len({relation.scale for relation in given}) != 1:
        return operation.unknown("joins along the batch")
    for relation, pair in zip(given, pairs, strict=True):
        befores.add(mapped(relation.before, pair, result.micro, range(len(result.micro))))
    made = operation.rows(befores.pop() if len(befores) == 1 else None, given[0].scale)
    if "index" not in kinds or made[0].kind != "rows":
        return made
    columns, offset = [], 0
    for relation, pair in zip(given, pairs, strict=True):
        if relation.kind == "index":
            columns += [offset + column for column in (relation.columns or (0,))]
        offset += pair.micro[dimension]
    if dimension != len(result.micro) - 1:
        return operation.unknown("computes with the numbers of samples within the batch")
    return operation.all(Relation("index", before=made[0].before, columns=tuple(columns)))


def _kept_axes(touched: Callable[[Operation], Sequence[int]]) -> Callable[[Operation], list[Relation]]:
    """The rule of what keeps the order of dimensions and changes some of them: slices, padding, reversal."""

    def rule(operation: Operation) -> list[Relation]:
        relation, pair, result = operation.given[0], operation.operands[0], operation.results[0]
        others = operation.given[1:]
        if relation.kind == "reduced":
            linear = all(other.zero or other.origin == "constant" for other in others) and relation.is_sum
            return operation.all(relation) if linear and result.alike else operation.unknown("cuts a reduction")
        if relation.kind == "same":
            return operation.unknown("puts samples of the batch into something else")
        if relation.kind == "index" or pair.axis in touched(operation):
            return operation.unknown("takes some samples of the batch, or moves them")
        if any(not (other.plain or other.kind == "rows") for other in others):
            return operation.unknown("mixes samples with something else")
        if others and not others[0].zero and not math.isclose(relation.scale, 1.0):
            return operation.unknown("isn't linear in a value that is scaled by the batch's size")
        return operation.rows(mapped(relation.before, pair, result.micro, range(len(result.micro))), relation.scale)

    return rule


def _sliced(operation: Operation) -> list[int]:
    params, pair = operation.params, operation.operands[0]
    strides = params["strides"] or (1,) * len(pair.micro)
    bounds = zip(params["start_indices"], params["limit_indices"], strides, pair.micro, strict=True)
    return [n for n, (begin, end, stride, size) in enumerate(bounds) if (begin, end, stride) != (0, size, 1)]


def _resized(operation: Operation) -> list[int]:
    """Dimensions that a slice at a place that is computed doesn't take whole."""
    part = operation.operands[1] if operation.name == "dynamic_update_slice" else operation.results[0]
    whole = operation.operands[0]
    return [n for n, (a, b) in enumerate(zip(part.micro, whole.micro, strict=True)) if a != b]


def _padded(operation: Operation) -> list[int]:
    return [n for n, config in enumerate(operation.params["padding_config"]) if tuple(config) != (0, 0, 0)]


def _windows(operation: Operation) -> list[Relation]:
    """Of pooling: windows that are one sample wide."""
    relation, pair, params = operation.given[0], operation.operands[0], operation.params
    names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    taken = [params[name][pair.axis] for name in names] if pair.axis is not None else []
    if relation.kind != "rows" or taken != [1, 1, (0, 0), 1, 1] or relation.scale <= 0:
        return operation.unknown("goes along the batch")
    before = mapped(relation.before, pair, operation.results[0].micro, range(len(pair.micro)))
    return operation.rows(before, relation.scale)


def _scatter(operation: Operation) -> list[Relation]:
    """Of values that are put, or added, at places: within samples, at samples by their numbers, or into counts."""
    (operand, indices, updates), (pair, listed, parts) = operation.given, operation.operands
    numbers, axis = operation.params["dimension_numbers"], pair.axis
    counts = operation.name == "scatter-add" and operand.zero and operation.results[0].alike
    if counts and indices.kind == updates.kind == "rows" and parts.axis not in numbers.update_window_dims:
        return operation.all(Relation("reduced", scale=updates.scale, reason=operation.place))
    both = ((operand, pair), (updates, parts))
    if not all(r.kind == "rows" and p.outer(r.before) == 1 and r.scale == 1 for r, p in both):
        return operation.unknown("puts something at places that aren't its samples' own")
    if axis is None or parts.axis is None:
        return operation.unknown("mixes the batch with other dimensions")
    if indices.plain and axis not in (*numbers.inserted_window_dims, *numbers.scatter_dims_to_operand_dims):
        window = [n for n in range(len(pair.micro)) if n not in numbers.inserted_window_dims]
        if numbers.update_window_dims[window.index(axis)] == parts.axis and parts.micro[parts.axis] == pair.micro[axis]:
            return operation.all(operand)
    if indices.kind == "index" and listed.outer(indices.before) == 1 and axis in numbers.inserted_window_dims:
        columns = indices.columns if indices.columns is not None else (0,)
        if [numbers.scatter_dims_to_operand_dims[column] for column in columns] == [axis]:
            return operation.all(operand)
    return operation.unknown("puts something at places that aren't its samples' own")


def _drawn(operation: Operation) -> list[Relation]:
    """Random numbers and keys: each sample has its own, so those of the micro-batches are as good as the batch's."""
    befores = {relation.before for relation in operation.given if relation.kind == "rows"}
    if len(befores) > 1 or not all(relation.kind == "rows" or relation.plain for relation in operation.given):
        return operation.unknown("draws random numbers by something of the whole batch")
    if befores:
        return operation.rows(befores.pop())
    result = operation.results[0]
    if result.alike:
        return operation.all(same())
    return operation.rows(None if result.axis is None else math.prod(result.micro[: result.axis]))


def _marked(operation: Operation) -> list[Relation]:
    """The identity."""
    return [dataclasses.replace(relation) for relation in operation.given]


_ZERO_TO_ZERO = {
    "broadcast_in_dim", "reshape", "convert_element_type", "transpose", "neg", "squeeze", "copy", "expand_dims",
}  # fmt: skip

_DRAWN = """
    random_bits random_clone random_fold_in random_gamma random_seed random_split random_unwrap random_wrap
    rng_bit_generator rng_uniform
""".split()

_RULES: dict[str, Callable[[Operation], list[Relation]]] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _transpose,
    "reduce_sum": _reduction("add"),
    "reduce_max": _reduction("max"),
    "reduce_min": _reduction("min"),
    "reduce_and": _reduction("and"),
    "reduce_or": _reduction("or"),
    "reduce_prod": _reduction(None),
    "reduce_xor": _reduction(None),
    "argmax": _reduction(None),
    "argmin": _reduction(None),
    "sort": _along("dimension"),
    "cumsum": _along("axis"),
    "cumprod": _along("axis"),
    "cummax": _along("axis"),
    "cummin": _along("axis"),
    "cumlogsumexp": _along("axis"),
    "top_k": _along("operand_dimension"),
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    "gather": _gather,
    "iota": _iota,
    "concatenate": _concatenate,
    "slice": _kept_axes(_sliced),
    "dynamic_slice": _kept_axes(_resized),
    "dynamic_update_slice": _kept_axes(_resized),
    "pad": _kept_axes(_padded),
    "rev": _kept_axes(lambda operation: operation.params["dimensions"]),
    **dict.fromkeys(("reduce_window_max", "reduce_window_min", "reduce_window_sum"), _windows),
    **dict.fromkeys(("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"), _scatter),
    **dict.fromkeys(_DRAWN, _drawn),
    "optimization_barrier": _marked,
    "name": _marked,
    "sharding_constraint": _marked,
}
