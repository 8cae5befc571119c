"""Operators as the kernels that a device runs for its share of them: their sizes, whole and divided."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

import numpy as np

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu.problem import Operator, Operators

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Kernels: TypeAlias = Float[np.ndarray, " kernels"]
    Places: TypeAlias = Int[np.ndarray, " places"]
    Products: TypeAlias = Float[np.ndarray, "products 4"]

PRODUCT, UNFOLDED, ATTENTION, GROUPED, STREAM = "product", "unfolded", "attention", "grouped", "stream"
_MOST_SHAPES = 1 << 18
_FEW = 20_000
"""Up to so many pairs are told apart by sorting, which takes longer, but needs no compiled code."""


@final
class KernelKey(NamedTuple):
    """The kind, the dtype, and the text of fused attention of kernels that are predicted together."""

    kind: str
    dtype: str
    kernel: str


@final
@dataclasses.dataclass(frozen=True)
class KernelShape:
    """The sizes of the kernel that an operator is, whole."""

    kind: str  # `PRODUCT`, `UNFOLDED` (a convolution as the product of its patches), `ATTENTION`, `GROUPED` or `STREAM`
    dtype: str  # the dtype of its result
    kernel: str  # of attention the kernel's text
    # Of a product how many, rows, columns and contracted elements; of attention how many sequences, tokens, keys,
    # heads, heads of keys, and elements of a head; of a grouped product the tokens of all experts, the experts, columns
    # and contracted elements. A stream has none
    sizes: tuple[float, ...]
    flop: float  # its operations; of a stream 1
    # The place of the size that grows with samples: a product of several or a pass of attention has more of them; of
    # other products the rows are more, or in the gradient of a weight the contracted elements
    batched: int = 0


@final
@dataclasses.dataclass(frozen=True, eq=False)
class DistinctKernels:
    """The distinct kernels that one device runs for some operators: their whole shapes; the share of its operations
    that the device has, at most 1; how many times as many samples it is of as the operator's record, at least 1; and
    the bytes that it reads and writes. `of_operators` has the kernel that each operator runs.
    """

    shapes: tuple[KernelShape, ...]
    share: Kernels
    growth: Kernels
    traffic: Kernels
    of_operators: Int[np.ndarray, " operators"]

    def groups(self) -> dict[KernelKey, Places]:
        """Returns the indices of the kernels that are predicted together."""
        places: dict[KernelKey, list[int]] = {}
        for place, shape in enumerate(self.shapes):
            places.setdefault(KernelKey(shape.kind, shape.dtype, shape.kernel), []).append(place)
        return {key: np.array(some, dtype=np.intp) for key, some in places.items()}

    def sizes(self, places: Places) -> Float[np.ndarray, "places sizes"]:
        """Returns the sizes of whole kernels of one kind."""
        sizes = np.array([self.shapes[place].sizes for place in places.tolist()], dtype=np.float64)
        grown = [self.shapes[place].batched for place in places.tolist()]
        sizes[np.arange(len(places)), grown] *= self.growth[places]
        return sizes


@final
class OperatorShapes:
    """A translator of operators into kernels; it keeps the shapes of the records that it has seen."""

    def __init__(self) -> None:
        # The number of each record's shape, by the record's id; the records are kept, so that it stays theirs.
        self._numbers: dict[int, int] = {}
        self._records: list[Operator] = []
        self._shapes: dict[KernelShape, int] = {}

    def of(self, operators: Operators) -> DistinctKernels:
        """Returns the distinct kernels that a device runs for its share of one or more operators."""
        records = operators.records
        first, of_records = _distinct(np.fromiter(map(id, records), np.int64, len(records)), np.zeros(len(records)))
        numbers = self._numbers_of([records[place] for place in first.tolist()])[of_records]
        shapes = list(self._shapes)
        is_stream = np.array([shape.kind == STREAM for shape in shapes], dtype=np.bool_)[numbers]
        traffic = operators.read_bytes + operators.written_bytes
        # A kernel is told by its record's shape, and by the share of a product or the traffic of anything else.
        first, of_operators = _distinct(numbers, np.where(is_stream, traffic, operators.flop))
        chosen = tuple(shapes[number] for number in numbers[first].tolist())
        flop = np.array([shape.flop for shape in chosen])
        ratio = np.where(is_stream[first], 1.0, operators.flop[first] / flop)
        return DistinctKernels(chosen, np.minimum(ratio, 1), np.maximum(ratio, 1), traffic[first], of_operators)

    def _numbers_of(self, records: Sequence[Operator]) -> Int[np.ndarray, " records"]:
        if len(self._records) > _MOST_SHAPES:
            self._numbers, self._records, self._shapes = {}, [], {}
        for record in records:
            if id(record) not in self._numbers:
                self._records.append(record)
                self._numbers[id(record)] = self._shapes.setdefault(_shape(record), len(self._shapes))
        return np.array([self._numbers[id(record)] for record in records], dtype=np.int64)


def _distinct(keys: Places, values: Float[np.ndarray, " places"]) -> tuple[Int[np.ndarray, " pairs"], Places]:
    """Returns the first place of each distinct pair of a key, below 2^53, and a value, and for each place the number of
    its pair.
    """
    if len(keys) > _FEW:
        return _distinct_of_many(keys, values)
    pairs = np.empty(len(keys), dtype=np.complex128)
    pairs.real, pairs.imag = keys, values
    _, first, numbers = np.unique(pairs, return_index=True, return_inverse=True)
    return first, numbers


@compiled("(i8[::1], f8[::1])")
def _distinct_of_many(keys: Places, values: Float[np.ndarray, " places"]) -> tuple[Int[np.ndarray, " pairs"], Places]:
    size = 4
    while size < 2 * len(keys):
        size *= 2
    slots = np.full(size, -1, dtype=np.int64)
    first, count = np.empty(len(keys), dtype=np.int64), 0
    numbers = np.empty(len(keys), dtype=np.int64)
    bits = values.view(np.int64)
    for place in range(len(keys)):
        mixed = (keys[place] * 0x9E3779B1 + bits[place]) * 0x85EBCA6B
        slot = (mixed ^ (mixed >> 29)) & (size - 1)
        while slots[slot] >= 0 and (keys[first[slots[slot]]] != keys[place] or bits[first[slots[slot]]] != bits[place]):
            slot = (slot + 1) & (size - 1)
        if slots[slot] < 0:
            slots[slot] = count
            first[count] = place
            count += 1
        numbers[place] = slots[slot]
    return first[:count].copy(), numbers


def divided_products(sizes: Products, share: Kernels) -> Products:
    """Returns one device's products: some whole ones of a batch, parts of others. A product's longest side is
    divided first, until another one is the longest: which sides devices divide isn't known, but parallelism leaves no
    part that is much longer than it is wide.

    >>> divided_products(np.array([[1.0, 64.0, 8.0, 8.0], [4.0, 8.0, 8.0, 8.0]]), np.array([0.25, 0.5])).tolist()
    [[1.0, 16.0, 8.0, 8.0], [2.0, 8.0, 8.0, 8.0]]
    """
    batch = np.where(sizes[:, 0] > 1, np.maximum(sizes[:, 0] * share, 1.0), 1.0)
    left = share * sizes[:, 0] / batch
    order = np.argsort(-sizes[:, 1:], axis=1, kind="stable")
    first, second, third = np.take_along_axis(sizes[:, 1:], order, axis=1).T
    # All that are divided end equally long: two of them if that leaves the third one shorter, and so on.
    single, double, triple = first * left, np.sqrt(first * second * left), np.cbrt(first * second * third * left)
    sides = np.where(
        (single >= second)[:, None], np.stack([single, second, third], axis=1),
        np.where((double >= third)[:, None], np.stack([double, double, third], axis=1), np.stack([triple] * 3, axis=1)),
    )  # fmt: skip
    parts = np.empty_like(sizes)
    parts[:, 0] = batch
    np.put_along_axis(parts[:, 1:], order, np.maximum(sides, 1.0), axis=1)
    return parts


def divided_attention(sizes: Float[np.ndarray, "passes 6"], share: Kernels) -> Float[np.ndarray, "passes 6"]:
    """Returns one device's passes of attention: sequences are divided first, then heads, and then the queries of the
    last head.

    >>> divided_attention(np.array([[2.0, 64.0, 64.0, 4.0, 2.0, 8.0]] * 2), np.array([1 / 4, 1 / 16])).tolist()
    [[1.0, 64.0, 64.0, 2.0, 1.0, 8.0], [1.0, 32.0, 64.0, 1.0, 1.0, 8.0]]
    """
    batch, tokens, keys, heads, kv_heads, head = sizes.T
    batch_left = np.maximum(batch * share, 1.0)
    heads_left = np.maximum(heads * batch * share / batch_left, 1.0)
    tokens_left = np.maximum(tokens * heads * batch * share / batch_left / heads_left, 1.0)
    kv_heads_left = np.maximum(kv_heads * heads_left / heads, 1.0)
    return np.stack([batch_left, tokens_left, keys, heads_left, kv_heads_left, head], axis=1)


def divided_grouped(sizes: Products, share: Kernels) -> Products:
    """Returns one device's grouped products: experts are divided first, with their tokens, then columns.

    >>> divided_grouped(np.array([[64.0, 4.0, 8.0, 8.0]]), np.array([1 / 8])).tolist()
    [[16.0, 1.0, 4.0, 8.0]]
    """
    parts = np.array(sizes)
    parts[:, 1] = np.maximum(sizes[:, 1] * share, 1.0)
    parts[:, 0] = sizes[:, 0] * parts[:, 1] / sizes[:, 1]
    parts[:, 2] = np.maximum(sizes[:, 2] * share * sizes[:, 1] / parts[:, 1], 1.0)
    return parts


def _shape(record: Operator) -> KernelShape:
    if record.kind == "attention" and record.flop > 0:
        queries, keys = record.input_shapes[:2]
        values = record.input_shapes[2] if len(record.input_shapes) > 2 else keys
        counts = (*queries[:2], keys[1], queries[2], keys[2])
        head_dim = (queries[3] + values[-1]) / 2
        return KernelShape(ATTENTION, record.dtype, record.kernel, (*map(float, counts), head_dim), record.flop)
    if record.kind == "grouped" and record.flop > 0:
        (tokens, _), (experts, inner, columns) = record.input_shapes[:2]
        counts = (tokens, experts, columns, inner)
        return KernelShape(GROUPED, record.dtype, "", tuple(map(float, counts)), record.flop)
    for kind, sizes in ((PRODUCT, record.product_sizes), (UNFOLDED, _unfolded(record))):
        if sizes is not None:
            batched = 0 if sizes[0] > 1 else 3 if record.by_weight else 1
            return KernelShape(kind, record.dtype, "", sizes, record.flop, batched)
    return KernelShape(STREAM, "", "", (), 1.0)


def _unfolded(record: Operator) -> tuple[float, float, float, float] | None:
    """Returns the sizes of the matrix product that a convolution is, once its patches are unfolded; None for others.
    The kernel, or what takes its place in a gradient, is the right operand.
    """
    if record.kind != "conv" or record.flop <= 0:
        return None
    result, right = math.prod(record.output_shapes[0]), math.prod(record.input_shapes[1])
    inner = max(record.flop / 2 / max(result, 1), 1.0)
    columns = max(right / inner, 1.0)
    return 1.0, max(result / columns, 1.0), columns, inner
