"""A layer's forward pass, backward pass and update as one program of the engine, as Alpa's pass sees a stage.

The optimizer is left out but for one operator for each parameter, which ties the layouts of a parameter, of its
gradient and of its state to each other: optimizers compute element by element.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.sharding._facts import Facts
from alpa_dejavu.sharding._operator import ProgramOperator

if TYPE_CHECKING:
    from alpa_dejavu.layers.features.flatten import Step, Value


@final
@dataclasses.dataclass(frozen=True)
class TrainedParameter:
    """A trained parameter of a program, with its gradient's operators and the size of its optimizer state.

    Attributes:
        parameter, accumulator: the indices of the operators of the parameter and of its accumulated gradient.
        sums: the indices of the products and reductions that its gradient is added up from.
        state_bytes: bytes of its whole optimizer state.
    """

    parameter: int
    accumulator: int
    sums: tuple[int, ...]
    state_bytes: float


@final
@dataclasses.dataclass(frozen=True)
class Lifetime:
    """A value of a pass in memory from one operation to another: the operator that says how it is cut, its bytes."""

    operator: int
    num_bytes: float
    first: int = 0
    last: int = 0


@final
@dataclasses.dataclass(frozen=True, eq=False)
class PassSteps:
    """The operations of a pass, from which its data flow is derived: operators know less of it, since several results
    of which each is made of the one before may be cut by one operator.

    Attributes:
        steps: the operations, in order.
        starts: how many operators of the program there were before each operation was read, and after all of them.
        places: for each value the index of the operator by which it is cut.
    """

    steps: tuple[Step, ...]
    starts: tuple[int, ...]
    places: Mapping[Value, int]


NO_STEPS = PassSteps((), (0,), {})


@final
@dataclasses.dataclass(frozen=True)
class LayerProgram:
    """The operators of one layer, or of several as one, as a program that the sharding engine solves.

    Equal programs need to be solved once.

    Attributes:
        operators: the operators, each after its operands; all else refers to them by their indices.
        num_forward, num_backward: how many operators belong to the two passes; those of the update come after them.
        parameters: the operators that are parameters of the model.
        trained: the parameters that are trained, with their gradients and optimizer state.
        kept: the values that a micro-batch's forward pass makes and keeps for the backward pass.
        inputs: the values that the layer gets from others, which is what it keeps where it is computed again.
        received, sent: operators whose results cross the boundary before, and after, the layer, in either pass.
        forward_records, backward_records: the operator behind each operator record of `features.layer_features`.
        update_records: for each operator record of the update the operator of the parameter that it works on, or -1.
        forward_temporaries, backward_temporaries: the values that are made and used up within a pass.
        results: the operators of the forward jaxprs' results, -1 for constants.
        known_batch: pairs of an operator and its batch dimension, where that is known beforehand.
        forward_steps, backward_steps: the operations of both passes. Equal programs may be read from different ones.
    """

    operators: tuple[ProgramOperator, ...]
    num_forward: int
    num_backward: int
    parameters: tuple[int, ...]
    trained: tuple[TrainedParameter, ...]
    kept: tuple[Lifetime, ...]
    inputs: tuple[Lifetime, ...]
    received: tuple[int, ...]
    sent: tuple[int, ...]
    forward_records: tuple[int, ...]
    backward_records: tuple[int, ...]
    update_records: tuple[int, ...]
    forward_temporaries: tuple[Lifetime, ...]
    backward_temporaries: tuple[Lifetime, ...]
    results: tuple[int, ...] = ()
    known_batch: tuple[tuple[int, int], ...] = ()
    forward_steps: PassSteps = dataclasses.field(default=NO_STEPS, compare=False, repr=False)
    backward_steps: PassSteps = dataclasses.field(default=NO_STEPS, compare=False, repr=False)

    @cached_property
    def _hash(self) -> int:
        return hash((self.operators, self.received, self.sent, self.forward_records, self.backward_records))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def smaller(self) -> frozenset[int]:
        """Returns the operators whose results cross a boundary of the layer, and are smaller than its largest one."""
        smaller: set[int] = set()
        for side in (self.received, self.sent):
            sizes = {place: math.prod(self.operators[place].shape) for place in side}
            smaller.update(place for place, size in sizes.items() if size < max(sizes.values()))
        return frozenset(smaller)

    @cached_property
    def facts(self) -> Facts:
        """Returns what the engine needs on every mesh."""
        return Facts.of(self.operators, thorough=True, known_batch=self.known_batch)

    @cached_property
    def batched(self) -> NDArray[np.int64]:
        """Returns for each operator 1 if its result has a batch dimension, else 0."""
        return np.array([dim is not None for dim in self.facts.batch_dims], dtype=np.int64)

    @cached_property
    def columns(self) -> Mapping[str, NDArray[np.float64]]:
        """Returns the values that stay in memory, by their roles, and those of each pass that don't, by the pass: the
        operator, bytes, and first and last operation of each, in columns; shape (4, values).
        """
        operators, trained = self.operators, self.trained
        values: dict[str, list[tuple[int, float, int, int]]] = {
            "parameter": [(place, operators[place].num_bytes, 0, 0) for place in self.parameters],
            "optimizer": [(t.parameter, t.state_bytes, 0, 0) for t in trained],
            "gradient": [(t.accumulator, operators[t.accumulator].num_bytes, 0, 0) for t in trained],
        }
        lifetimes = {
            "activation": self.kept, "input": self.inputs,
            "forward": self.forward_temporaries, "backward": self.backward_temporaries,
        }  # fmt: skip
        for name, group in lifetimes.items():
            values[name] = [(value.operator, value.num_bytes, value.first, value.last) for value in group]
        return {name: np.array(rows, dtype=np.float64).reshape(-1, 4).T for name, rows in values.items()}

    @cached_property
    def reads(self) -> list[tuple[tuple[int, int, bool], ...]]:
        """Returns for each operator the position and place of each operand, and whether it has the result's rank."""
        operators = self.operators
        return [
            tuple((n, place, operators[place].rank == operator.rank) for n, place in enumerate(operator.operands))
            for operator in operators
        ]

    @cached_property
    def spread(self) -> dict[int, list[tuple[int, int]]]:
        """Returns the operators that read each broadcast that stays in the layer, and at which position each does."""
        broadcasts = (n for n, operator in enumerate(self.operators) if operator.kind == "broadcast")
        readers: dict[int, list[tuple[int, int]]] = {n: [] for n in broadcasts if n not in self.sent}
        for reader, reads in enumerate(self.reads):
            for position, place, _ in reads:
                if place in readers:
                    readers[place].append((reader, position))
        return readers

    @cached_property
    def products(self) -> list[int]:
        """Returns the operators that are matrix products, in order."""
        return [index for index, operator in enumerate(self.operators) if operator.kind == "dot"]

    @cached_property
    def sums(self) -> list[tuple[int, tuple[int, int]]]:
        """Returns the operators that add two results, with those."""
        pairs = ((n, operator.operands) for n, operator in enumerate(self.operators) if operator.name == "add")
        return [(n, (operands[0], operands[1])) for n, operands in pairs if len(operands) == 2]

    @cached_property
    def edges(self) -> dict[Hashable, NDArray[np.int32]]:
        """Returns a cache of what waits for what in a pass, by the pass, the operators' layouts and the collectives."""
        return {}

    def phase(self, operator: int) -> str:
        """Returns the pass that an operator belongs to: "forward", "backward" or "update"."""
        if operator < self.num_forward:
            return "forward"
        return "backward" if operator < self.num_forward + self.num_backward else "update"
