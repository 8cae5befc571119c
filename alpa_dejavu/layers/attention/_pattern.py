"""Attention by its pattern: a product of queries and keys, a softmax over the keys, a product with the values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import final

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers._jaxprs import shape_of
from alpa_dejavu.layers.attention._equations import Equations, Location
from alpa_dejavu.layers.attention._labels import Labels, forward_labels
from alpa_dejavu.layers.attention._roles import ProductRoles
from alpa_dejavu.layers.attention._score_region import MixedError, ScoreRegion
from alpa_dejavu.layers.attention._triangle import masks_beyond
from alpa_dejavu.layers.attention.kernel import AttentionKernel

_EXPONENTIALS = ("exp", "exp2")


@final
@dataclasses.dataclass(frozen=True, eq=False)
class AttentionPattern:
    """Attention in one pass: its forward products, its backward products, or both.

    Attributes:
        region: the equations that compute with scores.
        kernel: the sizes of its forward kernel.
        scores: the product of queries and keys.
        row_sums: the sum of each row's exponentials.
        queries, keys, values: the operands.
        output: the product with the values; None if the pass doesn't have it.
        cotangent: the cotangent of the output; None if the pass has no backward products.
        gradients: the products that are gradients, by the operand that they are of.
    """

    region: ScoreRegion
    kernel: AttentionKernel
    scores: core.Var
    row_sums: core.Var
    queries: core.Var
    keys: core.Var
    values: core.Var
    output: Location | None
    cotangent: core.Var | None
    gradients: Mapping[str, Location]


def attention_from(equations: Equations, start: Location, mate: int = -1) -> AttentionPattern | None:
    """Returns the attention whose scores the product at a place makes; None if it makes none, or they are used for more
    than that. `mate` is the number of the backward pass of the same layer, which may take values of this one's.
    """
    product = _Product.of(equations, start)
    if product is None:
        return None
    seeds = {product.scores: product.labels}
    try:
        region = ScoreRegion(equations, start[0], seeds, product.scores, product.key_label, product.query_labels, mate)
        region.enters.add(start)
        roles = ProductRoles(equations, region, start)
    except MixedError:
        return None
    if roles.values is None or not roles.normalised(product.row_sums):
        return None
    kernel = product.kernel(equations, region, roles)
    return AttentionPattern(
        region, kernel, product.scores, product.row_sums, product.queries, product.keys, roles.values, roles.output,
        roles.cotangent, roles.gradients,
    )  # fmt: skip


def backward_of(
    equations: Equations, ahead: AttentionPattern, number: int, kept: Sequence[core.Var]
) -> AttentionPattern | None:
    """Returns the products of a backward pass, given by its number, that read an attention's scores: values of its
    region that the forward pass keeps. None if they are something else.
    """
    region = ahead.region
    seeds = {var: region.labels[var] for var in kept}
    try:
        mate = ScoreRegion(equations, number, seeds, ahead.scores, region.keys, region.queries)
        roles = ProductRoles(equations, mate, None)
        if mate.passed():
            return None
    except MixedError:
        return None
    if roles.values is None or roles.cotangent is None or roles.output is not None:
        return None
    return dataclasses.replace(
        ahead, region=mate, queries=_standing_for(ahead.queries, roles.factors.get("keys")),
        keys=_standing_for(ahead.keys, roles.factors.get("queries")), values=roles.values, output=None,
        cotangent=roles.cotangent, gradients=roles.gradients,
    )  # fmt: skip


def _standing_for(operand: core.Var, other: core.Var | None) -> core.Var:
    """The operand that a backward pass has instead, if it lies in memory in the same way; else the operand."""
    is_alike = other is not None and other.aval.strip_weak_type() == operand.aval.strip_weak_type()
    return other if other is not None and is_alike else operand


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Product:
    """A product that makes scores of which a softmax is taken over the keys.

    Attributes:
        scores: its result.
        labels: the labels of the scores' dimensions.
        key_label, query_labels: those of the dimensions that keys alone have, and that queries alone have.
        row_sums: the sum of each row's exponentials.
        queries, keys: its operands.
        batch: the sizes of its batch dimensions: batches, then heads if there are several.
        head: how many elements are contracted.
    """

    scores: core.Var
    labels: Labels
    key_label: int
    query_labels: frozenset[int]
    row_sums: core.Var
    queries: core.Var
    keys: core.Var
    batch: Sequence[int]
    head: int

    @staticmethod
    def of(equations: Equations, start: Location) -> _Product | None:
        """Returns the product at a place; None if it makes no such scores. It has a batch dimension: a product with
        parameters, of which a classifier takes a softmax, has none.
        """
        equation = equations.at(start)
        (contracted, _), (batch, _) = equation.params["dimension_numbers"]
        left, right = equation.invars
        if not batch or not isinstance(left, core.Var) or not isinstance(right, core.Var):
            return None
        (scores,) = equation.outvars
        shape, left_shape = shape_of(scores), shape_of(left)
        labels = tuple(dim if size > 1 else None for dim, size in enumerate(shape))
        softmax = _softmax(equations, start[0], scores, labels)
        if softmax is None:
            return None
        key_label, row_sums = softmax
        num_left = len(left_shape) - len(contracted)
        sides = range(len(batch), num_left), range(num_left, len(shape))
        free = [[dim for dim in side if shape[dim] > 1] for side in sides]
        if [key_label] not in free:
            return None
        if free[0] == [key_label]:
            left, right, free = right, left, free[::-1]
        sizes = [left_shape[dim] for dim in sorted(batch)]
        head = math.prod(left_shape[dim] for dim in contracted)
        return _Product(scores, labels, key_label, frozenset(free[0]), row_sums, left, right, sizes, head)

    def kernel(self, equations: Equations, region: ScoreRegion, roles: ProductRoles) -> AttentionKernel:
        """Returns the sizes of the forward kernel. Of several dimensions that queries alone have, one is of tokens and
        all others of heads: tokens are what a causal mask is about, or else as many as the keys', or else the longest.
        """
        shape = shape_of(self.scores)
        num_keys = shape[self.key_label]
        causal = [label for label in self.query_labels if self._is_causal(equations, region, roles, label)]
        order = sorted(
            self.query_labels, key=lambda label: (label not in causal, shape[label] != num_keys, -shape[label])
        )
        tokens = shape[order[0]] if order else 1
        *batch, key_heads = self.batch if len(self.batch) > 1 else (*self.batch, 1)
        heads = key_heads * math.prod(shape[label] for label in order[1:])
        return AttentionKernel(
            math.prod(batch), tokens, num_keys, heads, key_heads, self.head, roles.value_head, bool(causal)
        )

    def _is_causal(self, equations: Equations, region: ScoreRegion, roles: ProductRoles, label: int) -> bool:
        """Whether scores whose key is behind their query are masked; of more keys, the last are for the same tokens."""
        ahead = max(shape_of(self.scores)[self.key_label] - shape_of(self.scores)[label], 0)
        for location in region.independent_of(roles.later):
            equation = equations.at(location)
            labels = region.labels.get(equation.invars[0], ()) if equation.primitive.name in _EXPONENTIALS else ()
            if label in labels and self.key_label in labels:
                places = labels.index(label), labels.index(self.key_label)
                return any(masks_beyond(equations, equation.invars[0], *places, shift) for shift in {0, ahead})
        return False


def _softmax(equations: Equations, number: int, scores: core.Var, labels: Labels) -> tuple[int, core.Var] | None:
    """The label that a softmax of scores is over, and its sums: those of the first sum of exponentials."""
    near = _elementwise(equations, number, {scores: labels})
    exponentials = {
        var: labels_of
        for var, labels_of in near.items()
        if (equation := equations.maker(var)) is not None and equation.primitive.name in _EXPONENTIALS
    }
    after = exponentials | _elementwise(equations, number, exponentials)
    sums = sorted(
        ((taker, labels_of) for var, labels_of in after.items() for taker in equations.takers.get(var, ())
         if taker[0] == number and equations.at(taker).primitive.name == "reduce_sum"),
        key=lambda pair: pair[0],
    )  # fmt: skip
    if not sums:
        return None
    equation, labels = equations.at(sums[0][0]), sums[0][1]
    gone = [label for axis in equation.params["axes"] if (label := labels[axis]) is not None]
    return (gone[0], equation.outvars[0]) if len(gone) == 1 else None


def _elementwise(equations: Equations, number: int, starts: Mapping[core.Var, Labels]) -> dict[core.Var, Labels]:
    """The values that a pass makes of others element by element, directly or not, with their labels."""
    derived: dict[core.Var, Labels] = {}
    stack = list(starts.items())
    while stack:
        var, labels = stack.pop()
        for location in equations.takers.get(var, ()):
            equation = equations.at(location)
            if location[0] != number or len(equation.outvars) != 1 or equation.outvars[0] in derived:
                continue
            if not equation.primitive.name.startswith("reduce_") and equation.primitive.name != "dot_general":
                position = next(n for n, atom in enumerate(equation.invars) if atom is var)
                result_labels = forward_labels(equation, position, labels)
                if result_labels is not None:
                    derived[equation.outvars[0]] = result_labels
                    stack.append((equation.outvars[0], result_labels))
    return derived
