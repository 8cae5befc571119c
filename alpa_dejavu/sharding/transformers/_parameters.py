"""The parameters of a transformer's layer on one device by the way they are kept: which are trained, by what optimizer,
and the bytes of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import final

from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.sharding.transformers._execution import Execution

_SINGLE = 4.0
_HALF = 2.0
MATRIX, TABLE, VECTOR = "matrix", "table", "vector"
"""The kinds of parameters: of the products of blocks, of embeddings and the head, and all others, as norms."""


@final
@dataclasses.dataclass(frozen=True)
class BlockProduct:
    """A product of a block on one device, or several by the same operand that run as one.

    Attributes:
        tokens: its rows.
        parts: the columns of each of the products that are one.
        inner: its contracted elements.
        experts: the experts with a matrix of their own each; 0: it isn't grouped.
        target: "attention", "feed_forward", or "router", which is computed as all but products is.
    """

    tokens: float
    parts: tuple[float, ...]
    inner: float
    target: str
    experts: float = 0.0

    @property
    def columns(self) -> float:
        """Returns the columns of all parts together."""
        return sum(self.parts)

    @property
    def matrices(self) -> float:
        """Returns how many matrices each part has."""
        return self.experts or 1.0

    @property
    def elements(self) -> float:
        """Returns the elements of its matrices."""
        return self.columns * self.inner * self.matrices

    def has_adapters(self, size: Transformer) -> bool:
        """Returns whether adapters of the transformer are on it."""
        return self.target != "router" and (size.lora_targets == "all" or self.target == "attention")

    def adapters(self, rank: int) -> tuple[BlockProduct, BlockProduct]:
        """Returns the two products of its adapters: to the rank for each part, and from there to the columns."""
        narrow = dataclasses.replace(self, parts=(float(rank),) * len(self.parts))
        return narrow, dataclasses.replace(self, inner=float(rank))


@final
@dataclasses.dataclass(frozen=True)
class ParameterGroup:
    """Parameters of a layer on one device that are kept in one way.

    Attributes:
        count: how many there are.
        kind: "matrix", "table" or "vector".
        experts: whether they are experts'.
        trained: whether they are trained.
        adapters: whether they are those of adapters.
        shapes: the rows, the columns and the number of the matrices that they are, if they are any.
    """

    count: float
    kind: str
    experts: bool = False
    trained: bool = True
    adapters: bool = False
    shapes: tuple[tuple[float, float, float], ...] = ()

    @classmethod
    def of(
        cls, products: Iterable[BlockProduct], experts: bool, trained: bool = True, adapters: bool = False
    ) -> ParameterGroup:
        """Returns the parameters that the matrices of products are."""
        own = tuple(products)
        shapes = tuple((part, of.inner, of.matrices) for of in own for part in of.parts)
        return cls(sum(of.elements for of in own), MATRIX, experts, trained, adapters, shapes)


@final
@dataclasses.dataclass(frozen=True)
class ParameterBytes:
    """The bytes of parameters on a device that computes with all of them: ZeRO shares these.

    Attributes:
        count: how many of them are trained.
        weights, gradients, states: what is kept of them.
        gathered: of those that are whole while ZeRO-3 computes with them.
        regathered: of those that it gathers for a backward pass, where there is one.
        updated: of those that are sent on once they are updated.
        reduced: of gradients while devices add them up.
        owned: the part of `reduced` that goes to the one device that updates a whole matrix.
        whole: of updates of matrices that each device gathers in half precision.
        factors: of statistics of rows and columns, which devices add up.
        traffic: what an update reads and writes.
    """

    count: float = 0.0
    weights: float = 0.0
    gradients: float = 0.0
    states: float = 0.0
    gathered: float = 0.0
    regathered: float = 0.0
    updated: float = 0.0
    reduced: float = 0.0
    owned: float = 0.0
    whole: float = 0.0
    factors: float = 0.0
    traffic: float = 0.0

    @staticmethod
    def of(
        groups: Iterable[ParameterGroup], size: Transformer, execution: Execution, *, owns: bool, goes_back: bool
    ) -> ParameterBytes:
        """Returns the bytes of groups of parameters together.

        Args:
            groups: the groups.
            size: the transformer.
            execution: how its framework runs it.
            owns: whether an optimizer of whole matrices updates each on one device.
            goes_back: whether their layer has a backward pass.
        """
        own = [_of_group(group, size, execution, owns, goes_back) for group in groups]
        names = [field.name for field in dataclasses.fields(ParameterBytes)]
        return ParameterBytes(**{name: sum(getattr(each_bytes, name) for each_bytes in own) for name in names})


def _of_group(
    group: ParameterGroup, size: Transformer, execution: Execution, owns: bool, goes_back: bool
) -> ParameterBytes:
    count, product = group.count, group.kind == MATRIX and not group.adapters
    weight, gathered = execution.weight_bytes, execution.gathered_bytes
    if not group.trained:
        weight = gathered = size.frozen_bytes if product else _SINGLE if size.computes_in.usual == "float32" else _HALF
    operand = size.computes_in.operand_bytes if product and (group.trained or not size.frozen) else 0.0
    if operand:
        copies = execution.narrow_copies * operand
        weight = copies if size.gather and copies else weight + copies
        gathered = operand if size.gather else gathered
    if not group.trained:
        return ParameterBytes(
            weights=weight * count, gathered=gathered * count, regathered=gathered * count * goes_back
        )
    optimizer = size.updated_by
    factors = _factors(group) if optimizer.factored else 0.0
    moments = factors + count * {
        MATRIX: optimizer.matrix_bytes, TABLE: optimizer.table_bytes, VECTOR: optimizer.vector_bytes,
    }[group.kind]  # fmt: skip
    orthogonal = bool(optimizer.iterations) and group.kind == MATRIX
    around = 2 * _SINGLE + execution.gradient_bytes + execution.weight_bytes
    again = optimizer.again_bytes if group.kind == MATRIX else 0.0
    return ParameterBytes(
        count=count,
        weights=weight * count,
        gradients=execution.gradient_bytes * count,
        states=execution.master_bytes * count + moments,
        gathered=gathered * count,
        regathered=gathered * count * goes_back,
        updated=gathered * count,
        reduced=execution.reduced_bytes * count,
        owned=execution.reduced_bytes * count if orthogonal and owns else 0.0,
        whole=_HALF * count if orthogonal and not owns else 0.0,
        factors=factors,
        traffic=2 * moments + (around + again) * count,
    )


def _factors(group: ParameterGroup) -> float:
    return _SINGLE * sum((rows + columns) * number for rows, columns, number in group.shapes)
