"""One operation of jax, in the traces of a micro-batch and of the batch, and what rules say of its results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from jax._src import source_info_util

from alpa_stock_jax._batch_relation import Pair, Relation, join_origins, unknown

__all__ = ["SAMPLES_COMPARED", "SPREAD_BACK", "Operation", "all_as", "as_sum", "mapped"]

SAMPLES_COMPARED = "compares samples of the batch with one another, as a contrastive loss does"
SPREAD_BACK = "puts a number of the whole batch back into its samples, as batch normalisation does"


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation in both traces.

    Attributes:
        micro, whole: its equations.
        given: the relations of its operands.
        micro_batches: the number of micro-batches.
        micro_batch: the samples of a micro-batch.
    """

    micro: Any
    whole: Any
    given: tuple[Relation, ...]
    micro_batches: int
    micro_batch: int

    @property
    def name(self) -> str:
        return str(self.micro.primitive.name)

    @property
    def operands(self) -> list[Pair]:
        return [Pair.of(*pair) for pair in zip(self.micro.invars, self.whole.invars, strict=True)]

    @property
    def results(self) -> list[Pair]:
        return [Pair.of(*pair) for pair in zip(self.micro.outvars, self.whole.outvars, strict=True)]

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.micro.params)

    @property
    def place(self) -> str:
        """Its name and where it stands in the user's code."""
        return f"{self.name} at {source_info_util.summarize(self.micro.source_info)}"

    def unknown(self, what: str) -> list[Relation]:
        """Says of all results that nothing is known of them."""
        return [unknown(f"{self.place} {what}", join_origins(self.given)) for _ in self.micro.outvars]

    def all(self, relation: Relation) -> list[Relation]:
        """Gives all results one relation."""
        return [dataclasses.replace(relation, origin=join_origins(self.given)) for _ in self.micro.outvars]

    def rows(self, before: int | None, scale: float = 1.0) -> list[Relation]:
        """Says of all results that they are joined along the batch, if their shapes allow it."""
        for pair in self.results:
            axis = pair.axis
            if before is None or axis is None or pair.outer(before) is None:
                return self.unknown("mixes the batch with other dimensions")
            if pair.whole[axis] != self.micro_batches * pair.micro[axis]:
                return self.unknown("makes a dimension that doesn't grow with the batch")
        return self.all(Relation("rows", scale=scale, before=before or 1))


def mapped(before: int, pair: Pair, shape: Sequence[int], positions: Sequence[int]) -> int | None:
    """The elements before the batch after its dimension has moved.

    Args:
        before: those before it, in the operand.
        pair: the operand's shapes.
        shape: the result's shape with a micro-batch.
        positions: where each of the operand's dimensions is in the result, or -1.
    """
    axis, outer = pair.axis, pair.outer(before)
    if axis is None or outer is None or positions[axis] < 0:
        return None
    return math.prod(shape[: positions[axis]]) * outer


def as_sum(relation: Relation, micro_batches: int) -> Relation | None:
    """A relation as that of a sum over micro-batches, or None: what is the same is the mean of itself."""
    if relation.is_sum:
        return relation
    if relation.kind == "same":
        return Relation("reduced", scale=relation.scale / micro_batches, origin=relation.origin)
    return None


def all_as(first: Relation, given: Sequence[Relation], micro_batches: int) -> bool:
    """Whether all are sums over micro-batches with one factor."""
    parts = [as_sum(relation, micro_batches) for relation in given if not relation.zero]
    return all(part is not None and math.isclose(part.scale, first.scale, rel_tol=1e-6) for part in parts)
