"""The records of operators: what each primitive of a layer computes and moves."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import checks

_EVENLY = ("transcendental", "passed_bytes", "strided_bytes", "strided_cache_bytes")
_BATCHED = ("flop", "read_bytes", "written_bytes")
"""The columns of which data-parallel devices have equal shares, and those of which a part has no batch dimension."""
_EXTREMES = ("reduce_max", "reduce_min", "argmax", "argmin")
OPERATOR_KINDS = (
    "dot", "grouped", "attention", "conv", "elementwise", "reduce", "gather", "scatter", "sort", "random", "layout",
    "other",
)  # fmt: skip
_ON_MATRIX_UNITS = ("dot", "grouped", "attention", "conv")


ATTENTION = ("fused", "plain")
"""How attention may be computed: by one kernel, or by products with a softmax between them, whose scores go through
memory."""
Ways = float | NDArray[np.int64]
"""Among how many devices: one number, or one for each operator."""


@final
@dataclasses.dataclass(frozen=True)
class FusedAttention:
    """A kernel that computes attention without writing its scores to memory.

    `window` is to how many tokens each attends at most, itself and those right before it; 0: to all. `capped` says
    whether scores are softly kept below a value.

    >>> FusedAttention.of_text("cudnn causal window=128 backward")
    FusedAttention(library='cudnn', causal=True, backward=True, window=128, capped=False)
    """

    library: str = "cudnn"
    causal: bool = True
    backward: bool = False
    window: int = 0
    capped: bool = False

    def __post_init__(self) -> None:
        checks.one_of("fused attention", "library", self.library, ATTENTION_LIBRARIES)

    @property
    def text(self) -> str:
        """Returns the kernel as the text that an `Operator` has it by."""
        window = [f"window={self.window}"] if self.window else []
        words = [*["causal"] * self.causal, *window, *["capped"] * self.capped, *["backward"] * self.backward]
        return " ".join([self.library, *words])

    @staticmethod
    def of_text(text: str) -> FusedAttention:
        """Returns the kernel that a text stands for; ValueError for an unknown library."""
        library, *words = text.split()
        window = next((int(word.removeprefix("window=")) for word in words if word.startswith("window=")), 0)
        return FusedAttention(library, "causal" in words, "backward" in words, window, "capped" in words)


ATTENTION_LIBRARIES = ("cudnn", "flash2")
"""The libraries of fused attention: cuDNN's, and those as fast, such as FlashAttention 3 on Hopper; FlashAttention 2,
which PyTorch's `scaled_dot_product_attention` runs."""


@final
@dataclasses.dataclass(frozen=True)
class Operator:
    """One primitive of a layer, on the whole (unsharded) tensors, for one micro-batch.

    Attributes:
        kind: one of `OPERATOR_KINDS`.
        dtype: the dtype of its first result, by numpy's name ("bfloat16" too).
        flop: its operations as XLA counts them: two for each multiply-add of a product, one for each element of other
            results.
        transcendental: how many exponentials, logarithms, tanh ... it evaluates.
        read_bytes, written_bytes: the bytes that go through memory; what stays inside a fused loop counts nothing.
        passed_bytes: the part of them that a forward pass keeps for its backward pass, or that this one reads from
            there for the first time.
        strided_bytes: the bytes that the code of XLA's CPU compiler reads element by element against the order in which
            they lie in memory, as for a transposed operand.
        strided_cache_bytes: the bytes of cache that must hold the lines of these reads until the rest of each is read.
        dilated: whether it is a convolution over an image with holes, as the gradient of a strided one is.
        parameter_bytes: the bytes of those of its operands that are computed from parameters alone.
        unbatched_flop, unbatched_read_bytes, unbatched_written_bytes: the part of these figures that has no batch
            dimension (parameters and their gradients), so that data parallelism doesn't divide it.
        count: how often it runs (the trips of the loops that it is in).
        by_weight: whether only gradients of weights need it: a schedule that splits backward passes may put it off.
        kernel: of kind "attention" the kernel, as `FusedAttention.text`; empty for all others. The first two operands
            are then queries, shape (batch, tokens, heads, head), and keys, shape (batch, tokens, heads of keys, head).
            Of kind "grouped", a product of each expert's tokens with its own matrix, the operands are tokens, shape
            (tokens of all experts, contracted elements), and matrices, shape (experts, contracted elements, columns).
        repeated: whether it computes again what its layer has computed before, as the model itself asks.
    """

    kind: str
    primitive: str
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    dtype: str
    flop: float
    transcendental: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    passed_bytes: float = 0.0
    strided_bytes: float = 0.0
    strided_cache_bytes: float = 0.0
    parameter_bytes: float = 0.0
    unbatched_flop: float = 0.0
    unbatched_read_bytes: float = 0.0
    unbatched_written_bytes: float = 0.0
    count: float = 1.0
    dilated: bool = False
    by_weight: bool = False
    kernel: str = ""
    repeated: bool = False

    def __post_init__(self) -> None:
        checks.one_of(f"operator {self.primitive}", "kind", self.kind, OPERATOR_KINDS)
        for field in (*_COLUMNS, "parameter_bytes"):
            checks.not_negative(f"operator {self.primitive}", field, getattr(self, field))

    @property
    def product_sizes(self) -> tuple[float, float, float, float] | None:
        """Returns the sizes (batch, rows, columns, contracted elements) of a matrix product; None for any other
        operator.

        >>> Operator("dot", "dot_general", ((8, 16, 32), (8, 32, 4)), ((8, 16, 4),), "float32", 32768.0).product_sizes
        (8.0, 16.0, 4.0, 32.0)
        """
        if self.kind != "dot" or self.flop <= 0 or len(self.input_shapes) < 2 or not self.output_shapes:
            return None
        left, right, result = (math.prod(shape) for shape in (*self.input_shapes[:2], self.output_shapes[0]))
        inner = self.flop / 2 / max(result, 1)
        if inner < 1:
            return None
        batch = min(max(round(left * right / result / inner**2), 1), result)
        return float(batch), max(left / batch / inner, 1.0), max(right / batch / inner, 1.0), inner


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Operators:
    """Many operators as columns of numbers, each of shape (number of operators,), for latency models to compute on.

    `records` are the operators. The columns have their figures, or the share of these that one of several devices has
    (see `split`). `is_product` says which run on matrix units (products, fused attention, convolutions), `is_single`
    which are matrix products with no batch dimension, `is_dilated` which are convolutions over images with holes,
    `is_extreme` which reduce to maxima or minima.
    """

    records: tuple[Operator, ...]
    dtype: NDArray[np.str_]
    is_product: NDArray[np.bool_]
    is_single: NDArray[np.bool_]
    is_dilated: NDArray[np.bool_]
    is_extreme: NDArray[np.bool_]
    flop: NDArray[np.float64]
    transcendental: NDArray[np.float64]
    read_bytes: NDArray[np.float64]
    written_bytes: NDArray[np.float64]
    passed_bytes: NDArray[np.float64]
    strided_bytes: NDArray[np.float64]
    strided_cache_bytes: NDArray[np.float64]
    unbatched_flop: NDArray[np.float64]
    unbatched_read_bytes: NDArray[np.float64]
    unbatched_written_bytes: NDArray[np.float64]
    count: NDArray[np.float64]

    @classmethod
    def of(cls, records: Sequence[Operator]) -> Operators:
        """Returns operator records as columns, undivided among devices."""
        columns = {name: np.array([getattr(r, name) for r in records], dtype=np.float64) for name in _COLUMNS}
        dtype = np.array([r.dtype for r in records], dtype=np.str_)
        is_product = np.array([r.kind in _ON_MATRIX_UNITS for r in records], dtype=np.bool_)
        is_single = np.array([r.product_sizes is not None and r.product_sizes[0] == 1 for r in records], dtype=np.bool_)
        is_dilated = np.array([r.dilated for r in records], dtype=np.bool_)
        is_extreme = np.array([r.primitive in _EXTREMES for r in records], dtype=np.bool_)
        return cls(tuple(records), dtype, is_product, is_single, is_dilated, is_extreme, **columns)

    @classmethod
    def joined(cls, parts: Sequence[Operators]) -> Operators:
        """Returns the columns of several groups of operators concatenated, in order; there must be one group at least.

        >>> add = Operators.of([Operator("elementwise", "add", ((8,), (8,)), ((8,),), "float32", flop=8)])
        >>> Operators.joined([add, add.split(2)]).flop
        array([8., 4.])
        """
        names = [field.name for field in dataclasses.fields(cls) if field.name != "records"]
        columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return cls(records=tuple(itertools.chain.from_iterable(part.records for part in parts)), **columns)

    def split(self, data_parallel: Ways, tensor_parallel: Ways = 1) -> Operators:
        """Returns what each device computes and moves when operators are divided evenly, all in the same numbers of
        ways or each in its own.

        Tensor parallelism divides everything, data parallelism all but what has no batch dimension.

        >>> add = Operator("elementwise", "add", ((8,), (8,)), ((8,),), "float32", flop=8, unbatched_flop=4)
        >>> Operators.of([add]).split(4, 2).flop
        array([2.5])
        """
        for name, ways in (("data_parallel", data_parallel), ("tensor_parallel", tensor_parallel)):
            if not np.greater(ways, 0).all():
                checks.positive("operators", name, float(np.min(ways)))
        divided, whole = self._divisible
        divided = divided / data_parallel
        divided[-len(whole) :] += whole
        divided /= tensor_parallel
        shares: dict[str, Any] = dict(zip((*_EVENLY, *_BATCHED), divided, strict=True))
        shares |= zip(map("unbatched_{}".format, _BATCHED), whole / tensor_parallel, strict=True)
        return dataclasses.replace(self, **shares)

    @functools.cached_property
    def _divisible(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The part that data-parallel devices divide, a row for each of `_EVENLY` and `_BATCHED`, and the rest."""
        whole = np.stack([getattr(self, f"unbatched_{name}") for name in _BATCHED])
        batched = np.stack([getattr(self, name) for name in _BATCHED]) - whole
        return np.concatenate([[getattr(self, name) for name in _EVENLY], batched]), whole

    @functools.cached_property
    def by_weight(self) -> NDArray[np.bool_]:
        """Returns which operators only gradients of weights need, shape (number of operators,)."""
        return np.array([record.by_weight for record in self.records], dtype=np.bool_)

    @functools.cached_property
    def repeated(self) -> NDArray[np.bool_]:
        """Returns which operators compute again what their layer has computed before, shape (number of operators,)."""
        return np.array([record.repeated for record in self.records], dtype=np.bool_)

    @property
    def repeats(self) -> bool:
        """Returns whether any of the operators that compute, not only move, compute again what their layer has."""
        return bool((self.repeated & (self.flop > 0)).any())

    @property
    def total_flop(self) -> float:
        """Returns the floating-point operations of all operators together, those in loops counted by their trips."""
        return float(self.flop @ self.count)

    @property
    def product_flop(self) -> float:
        """Returns the floating-point operations of matrix products and convolutions alone, loops by their trips."""
        return float((self.flop * self.count)[self.is_product].sum())

    def __len__(self) -> int:
        return len(self.records)


_COLUMNS = tuple(field.name for field in dataclasses.fields(Operators) if field.type == "NDArray[np.float64]")
