"""How a value that a micro-batch gives is related to the value that the whole batch gives.

A step is traced twice, with a micro-batch and with the whole batch, and the two jaxprs are read side by side. For each
pair of variables one of these relations holds, with x_m the value of micro-batch m of M and x that of the batch:

- "same": x = scale * x_m for each m.
- "rows": x is scale times the x_m, joined in order along the batch.
- "reduced": x = scale * (x_1 op x_2 op ... x_M), where op is add, max, min, and, or.
- "index": x counts the samples of the batch, so x_m counts those of the micro-batch from 0.
- "unknown": none of these; `reason` says which operation ended it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, TypeAlias

import numpy as np

__all__ = ["Kind", "Origin", "Pair", "Relation", "join_origins", "literal", "same", "unknown"]

Kind: TypeAlias = Literal["same", "rows", "reduced", "index", "unknown"]
Origin: TypeAlias = Literal["constant", "batch", "other"]


@dataclasses.dataclass(frozen=True)
class Relation:
    """How a micro-batch's value is related to the batch's.

    Attributes:
        kind: which relation holds (see above).
        scale: the factor in it.
        op: the operation of "reduced".
        before: of "rows" and "index": the elements of all dimensions that are before the batch's in row-major order.
        columns: of "index": where the last dimension lists indices, as those of a gather do, which of them count
            samples; None where the whole value does.
        zero: whether a "same" is 0.
        origin: what it depends on: nothing, the batch alone, or something else.
        reason: of "unknown": what happened, with the operation's name and its line; of "reduced": these two.
    """

    kind: Kind
    scale: float = 1.0
    op: str = "add"
    before: int = 1
    columns: tuple[int, ...] | None = None
    zero: bool = False
    origin: Origin = "other"
    reason: str = dataclasses.field(default="", compare=False)

    @property
    def plain(self) -> bool:
        """Whether it is the same value."""
        return self.kind == "same" and (self.zero or math.isclose(self.scale, 1.0, rel_tol=1e-6))

    @property
    def is_sum(self) -> bool:
        """Whether the batch's value is a multiple of the sum of the micro-batches'."""
        return self.kind == "reduced" and self.op == "add"

    def times(self, factor: float) -> Relation:
        """The relation of a value that is multiplied by a number which is `factor` times as large in the batch."""
        return dataclasses.replace(self, scale=self.scale * factor)


@dataclasses.dataclass(frozen=True)
class Pair:
    """The shapes of one variable in the trace of a micro-batch and in that of the batch."""

    micro: tuple[int, ...]
    whole: tuple[int, ...]

    @classmethod
    def of(cls, micro: Any, whole: Any) -> Pair:
        """The shapes of two variables or literals."""
        return cls(tuple(micro.aval.shape), tuple(whole.aval.shape))

    @property
    def alike(self) -> bool:
        """Whether no dimension depends on the batch."""
        return self.micro == self.whole

    @property
    def axis(self) -> int | None:
        """The one dimension that differs, or None."""
        if len(self.micro) != len(self.whole):
            return None
        differing = [n for n, (micro, whole) in enumerate(zip(self.micro, self.whole, strict=True)) if micro != whole]
        return differing[0] if len(differing) == 1 else None

    def outer(self, before: int) -> int | None:
        """How often the batch repeats within its dimension (1 where that isn't merged with dimensions before it).

        None where the batch, with so many elements before it, isn't one part of one dimension.
        """
        axis = self.axis
        if axis is None:
            return None
        earlier = math.prod(self.micro[:axis])
        if earlier == 0 or before % earlier or before < earlier:
            return None
        outer = before // earlier
        return outer if self.micro[axis] % outer == 0 and self.whole[axis] % outer == 0 else None

    def alone(self, before: int, micro_batch: int) -> bool:
        """Whether the batch is a dimension by itself."""
        return self.axis is not None and self.outer(before) == 1 and self.micro[self.axis] == micro_batch


def same(origin: Origin = "other", scale: float = 1.0, zero: bool = False) -> Relation:
    """The relation of a value that doesn't depend on how large the batch is, but for a factor."""
    return Relation("same", scale=scale, zero=zero, origin=origin)


def unknown(reason: str, origin: Origin) -> Relation:
    """The relation of a value of which nothing is known."""
    return Relation("unknown", reason=reason, origin=origin)


def join_origins(relations: tuple[Relation, ...] | list[Relation]) -> Origin:
    """What a value depends on that is computed from others."""
    origins = {relation.origin for relation in relations}
    return "other" if "other" in origins else "batch" if "batch" in origins else "constant"


def literal(micro: Any, whole: Any, micro_batches: int) -> Relation:
    """The relation of two constants."""
    try:
        small, large = np.asarray(micro), np.asarray(whole)
    except TypeError:  # such as keys: they are compared as they are
        return same("constant") if micro is whole else unknown("a constant depends on the batch", "constant")
    if small.shape == large.shape:
        if small.tobytes() == large.tobytes():  # NaN is NaN, too
            return same("constant", zero=not np.any(small))
        if small.ndim == 0 and small and np.isfinite(large):
            return same("constant", _ratio(float(small), float(large), small.dtype))
    pair = Pair(small.shape, large.shape)
    if (axis := pair.axis) is not None and pair.whole[axis] == micro_batches * pair.micro[axis]:
        before = math.prod(pair.micro[:axis])
        if small.ndim == 1 and all(np.array_equal(numbers, np.arange(numbers.size)) for numbers in (small, large)):
            return Relation("index", origin="constant")
        if all(np.array_equal(small, part) for part in np.split(large, micro_batches, axis)):
            return Relation("rows", before=before, origin="constant")
    return unknown("a constant is another one for the whole batch", "constant")


def _ratio(micro: float, whole: float, dtype: Any) -> float:
    """The factor between two constants, as the whole number or its inverse that it is but for rounding."""
    ratio = whole / micro
    tolerance = 4 * float(np.finfo(dtype).eps) if np.issubdtype(dtype, np.floating) else 1e-12
    for near in (float(round(ratio)), 1 / round(1 / ratio) if ratio and abs(ratio) < 1 else 0.0):
        if near and math.isclose(ratio, near, rel_tol=tolerance):
            return near
    return ratio
