"""Operators as the kernels that they are like: products by their shapes, all others by their traffic."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.costs.latency._kernels import CLASSES, Array, DataSheet, Kernels
from alpa_dejavu.problem import Device, Operator, Operators

_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "float8": 1}
_STREAM, _STREAM_BYTES = "relu", 8.0
"""The kernel that stands for an operator that streams, and the bytes that it moves for each element."""
_MOST_KNOWN = 1 << 18


@final
@dataclasses.dataclass(frozen=True, eq=False)
class DistinctKernels:
    """The distinct kernels that one device runs for some operators, and which operator runs which.

    Attributes:
        divided: the kernels that the device runs.
        whole: the kernels that it would run if matrix products weren't divided among devices.
        first: the index of the first operator that runs each kernel, shape (kernels,).
        of_operators: the index of the kernel that each operator runs, shape (operators,).
    """

    divided: Kernels
    whole: Kernels
    first: NDArray[np.intp]
    of_operators: NDArray[np.intp]


@final
@dataclasses.dataclass(frozen=True)
class _Shape:
    """The shape of a record, undivided and on any device; of one that isn't a product, `flop` and all sizes are 1."""

    op: str
    dtype: str
    batch: float
    m: float
    n: float
    k: float
    flop: float


@final
class OperatorKernels:
    """A translator of operators into the GPU kernels that a device runs for them; it caches the shapes of operators."""

    def __init__(self) -> None:
        # The number of each record's shape, by the record's id; the records are kept, so that it stays theirs.
        self._known: dict[int, int] = {}
        self._kept: list[Operator] = []
        self._numbers: dict[_Shape, int] = {}

    def of(self, operators: Operators, device: Device, sheet: DataSheet) -> DistinctKernels:
        """Returns the distinct kernels that one device, with this data sheet, runs for its share of one or more
        operators.
        """
        numbers, known = self._numbers_of(operators.records), list(self._numbers)
        used = np.flatnonzero(np.bincount(numbers))
        place = np.searchsorted(used, numbers)
        whole, flop = _undivided([known[number] for number in used.tolist()], device, sheet)
        traffic = operators.read_bytes + operators.written_bytes
        # A kernel is told by its record's shape, and by the share of a product or the traffic of anything else.
        figures = np.where((whole.kind == "product")[place], operators.flop, traffic)
        values, value = np.unique(figures, return_inverse=True)
        _, first, of_operators = np.unique(place * len(values) + value, return_index=True, return_inverse=True)
        whole, share = whole.take(place[first]), operators.flop[first] / flop[place[first]]
        return DistinctKernels(_divided(whole, share, traffic[first]), whole, first, of_operators)

    def _numbers_of(self, records: Sequence[Operator]) -> NDArray[np.intp]:
        """Returns the number of each record's shape."""
        if len(self._kept) > _MOST_KNOWN:
            self._known, self._kept, self._numbers = {}, [], {}
        numbers = np.array([self._known.get(id(record), -1) for record in records], dtype=np.intp)
        for place in np.flatnonzero(numbers < 0).tolist():
            record = records[place]
            if id(record) not in self._known:
                self._kept.append(record)
                self._known[id(record)] = self._numbers.setdefault(_shape(record), len(self._numbers))
            numbers[place] = self._known[id(record)]
        return numbers


def _shape(record: Operator) -> _Shape:
    found = record.product_sizes or _as_product(record)
    if found is None:
        return _Shape(_STREAM, record.dtype, 1.0, 1.0, 1.0, 1.0, 1.0)
    batch, rows, others, inner = found
    return _Shape("linear" if batch == 1 else "bmm", record.dtype, batch, max(rows, 1.0), others, inner, record.flop)


def _as_product(record: Operator) -> tuple[float, float, float, float] | None:
    """Returns the sizes of the matrix product that a convolution is, once its patches are unfolded; None for others.

    A library computes it so, without storing the patches; the kernel, or what takes its place in a gradient, is the
    right operand.
    """
    if record.kind != "conv" or record.flop <= 0:
        return None
    result, right = math.prod(record.output_shapes[0]), math.prod(record.input_shapes[1])
    inner = max(record.flop / 2 / max(result, 1), 1.0)
    columns = max(right / inner, 1.0)
    return 1.0, max(result / columns, 1.0), columns, inner


def _undivided(shapes: Sequence[_Shape], device: Device, sheet: DataSheet) -> tuple[Kernels, Array]:
    """Kernels of whole records, and the operations of those that are products (of others 1)."""
    products = [CLASSES.get(shape.op) == "product" for shape in shapes]
    pairs = list(zip(shapes, products, strict=True))
    rates = [device.rate(shape.dtype if product else "float32") for shape, product in pairs]
    widths = np.array([_BYTES.get(shape.dtype, 4) if product else 4 for shape, product in pairs], dtype=np.float64)
    of_rate = {each: _sustained(sheet, each) for each in set(rates)}
    same, narrower = np.ones(len(shapes)), 4 / widths

    def column(name: str) -> Array:
        return np.array([getattr(shape, name) for shape in shapes], dtype=np.float64)

    kernels = Kernels(
        op=np.array([shape.op for shape in shapes], dtype=np.str_),
        batch=column("batch"),
        m=column("m"),
        n=column("n"),
        k=column("k"),
        gpu=np.zeros(len(shapes), dtype=np.int64),
        rate=np.array(rates),
        sustained=np.array([of_rate[each] for each in rates]),
        # Kernels count four bytes of each number: narrower ones go faster and take less of the cache.
        bandwidth=sheet.memory_bytes_per_s * narrower,
        num_sm=sheet.num_sm * same,
        l2_bytes=sheet.l2_cache_bytes * narrower,
        process_nm=(sheet.process_nm or 0) * same,
    )
    return kernels, column("flop")


def _divided(whole: Kernels, share: Array, traffic: Array) -> Kernels:
    """Returns one device's kernels: some whole products of a batch, parts of others, and streams by traffic.

    A product's longest side is divided first, until another one is the longest: which sides devices divide isn't known,
    but parallelism divides samples, heads or wide layers, and so leaves no part that is much longer than it is wide.
    """
    product = whole.kind == "product"
    batch = np.where(whole.batch > 1, np.maximum(whole.batch * share, 1.0), 1.0)
    sides = _sides_divided(np.stack([whole.m, whole.n, whole.k], axis=1), share * whole.batch / batch)
    return dataclasses.replace(
        whole,
        # A batch of one product is an ordinary product.
        op=np.where(product & (batch == 1), "linear", whole.op),
        batch=batch,
        m=np.where(product, sides[:, 0], 1.0),
        n=np.where(product, sides[:, 1], np.maximum(traffic / _STREAM_BYTES, 1.0)),
        k=np.where(product, sides[:, 2], whole.k),
    )


def _sides_divided(sides: Array, share: Array) -> Array:
    """Returns the sides of products, shape (products, 3), after their longest ones are divided to a share of the work.

    >>> _sides_divided(np.array([[8.0, 4.0, 1.0], [64.0, 8.0, 8.0]]), np.array([1 / 8, 1 / 4])).tolist()
    [[2.0, 2.0, 1.0], [16.0, 8.0, 8.0]]
    """
    order = np.argsort(-sides, axis=1, kind="stable")
    first, second, third = np.take_along_axis(sides, order, axis=1).T
    # All that are divided end equally long: two of them if that leaves the third one shorter, and so on.
    one = first * share
    two = np.sqrt(first * second * share)
    three = np.cbrt(first * second * third * share)
    kept = np.where(
        (one >= second)[:, None], np.stack([one, second, third], axis=1),
        np.where((two >= third)[:, None], np.stack([two, two, third], axis=1), np.stack([three] * 3, axis=1)),
    )  # fmt: skip
    found = np.empty_like(sides)
    np.put_along_axis(found, order, np.maximum(kept, 1.0), axis=1)
    return found


def _sustained(sheet: DataSheet, rate: float) -> float:
    """Returns what a rate comes to: a sheet's power is reckoned for single precision; tensor cores take far less."""
    power_w = None if rate > sheet.flop_per_s else sheet.power_w
    return dataclasses.replace(sheet, flop_per_s=rate, power_w=power_w).sustained_flop_per_s
