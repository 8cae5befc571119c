"""The operators that the engine shards: what it must know of them, and nothing of where they come from."""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property
from typing import Literal

from alpa_dejavu.sharding._spec import Shape, Spec

Kind = Literal[
    "parameter", "constant", "random", "iota", "elementwise", "broadcast", "reshape", "transpose", "same_size",
    "window", "reduce", "sort", "dot", "convolution", "gather", "scatter", "identity", "sibling", "opaque", "output",
]


@dataclasses.dataclass(frozen=True)
class Dims:
    """The dimensions that an operator works with: those of a broadcast, transpose, reduce or sort; or window widths.

    A broadcast has the result's dimension for each of its operand's, a transpose the permutation, a reduce or sort the
    dimensions along which it works, and a windowed operator the width of its window along each dimension.
    """

    dims: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class DotDims:
    """The dimension numbers of a matrix product: the batch and the contracted dimensions of each operand.

    The result has the batch dimensions first, then the lhs's free dimensions, then the rhs's.
    """

    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_contract: tuple[int, ...]
    rhs_contract: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ConvolutionDims:
    """The batch and feature dimensions of a convolution, by which it can be cut, and its numbers of groups."""

    lhs_batch: int
    lhs_feature: int
    rhs_in_feature: int
    rhs_out_feature: int
    out_batch: int
    out_feature: int
    feature_groups: int = 1
    batch_groups: int = 1


@dataclasses.dataclass(frozen=True)
class IndexDims:
    """The dimensions that a gather or scatter doesn't index but takes whole: of its operand, result and updates."""

    operand: tuple[int, ...]
    result: tuple[int, ...]
    updates: tuple[int, ...] = ()


Attributes = Dims | DotDims | ConvolutionDims | IndexDims | None


@dataclasses.dataclass(frozen=True)
class ProgramOperator:
    """One operator of a program that is to be sharded; it has one result.

    An operator of several results is its first ("reduce", "sort", "opaque") and "sibling"s of that one. Tuples do not
    appear; a marker around several tensors is an "identity" of each.

    Attributes:
        kind: how the operator's result depends on its operands, dimension by dimension.
        operands: the operators whose results it reads, by their place in the list; each stands before this one.
        shape: the sizes of the result's dimensions.
        itemsize: bytes of one element of the result.
        name: the operator's own name, where the kind alone does not tell it ("add", "compare", "select").
        attributes: the dimension numbers of the kinds that have any, such as `DotDims` of a "dot".
        alias: for an "output", the parameter whose memory it takes over; both then get the same sharding.
        stage_start: whether this "identity" begins a pipeline stage.
        integer: whether the elements are integers.
        pinned: a sharding that the user asked for.
        repeats: how often it runs in one run of the program; its costs count so often.
        gradient: whether what it sums is a gradient that micro-batches add up, where that is known beforehand.

    References:
        The operators of the computational graph in section 4.2 of the Alpa paper (OSDI 2022).
    """

    kind: Kind
    operands: tuple[int, ...]
    shape: Shape
    itemsize: int
    name: str = ""
    attributes: Attributes = None
    alias: int | None = None
    stage_start: bool = False
    integer: bool = False
    pinned: Spec | None = None
    repeats: float = 1.0
    gradient: bool = False

    @cached_property
    def num_bytes(self) -> int:
        """Returns the bytes of the whole result, before it is cut."""
        return math.prod(self.shape) * self.itemsize

    @property
    def rank(self) -> int:
        """Returns the number of dimensions of the result."""
        return len(self.shape)

    def as_output(self, place: int, alias: int | None, pinned: Spec | None = None) -> ProgramOperator:
        """Returns an operator of kind "output" that makes the result of the operator `place` an output of the program,
        which takes over the memory of the parameter `alias` if there is one; `pinned` is the spec that the user asked
        for, if any.
        """
        return dataclasses.replace(
            self, kind="output", operands=(place,), name="", attributes=None, stage_start=False, alias=alias,
            pinned=pinned,
        )


def free_dims(rank: int, batch: tuple[int, ...], contract: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the dimensions of a matrix product's operand that are neither batch nor contracted ones."""
    return tuple(dim for dim in range(rank) if dim not in batch and dim not in contract)


def check_operators(operators: tuple[ProgramOperator, ...]) -> None:
    """Raises a ValueError unless every operator of a list stands after its operands."""
    for index, operator in enumerate(operators):
        if any(operand < 0 or operand >= index for operand in operator.operands):
            raise ValueError(
                f"operator {index} ({operator.kind} {operator.name}) reads operators {operator.operands}: order the "
                "list so that each stands after its operands"
            )
